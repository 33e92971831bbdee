"""PegaFlow with 8 to 512 nodes, in simulated time: the real state machines, a model of everything around them.

    real      TierState, MetaserverState (with their clones and indices), router policy and prefix memory, SaveTracker, load_plan
    modelled  what shells cost (costs.py), networks, copies and disks (pipes.py), engines.py, users

    agenda ─▶ cores (one per process, one event at a time) ─▶ real handle(event, now) ─▶ commands ─▶ agenda

`python -m simulation --help`, or scripts/simulate. What comes of it, and which figures go in: docs/scaling.md.
"""
