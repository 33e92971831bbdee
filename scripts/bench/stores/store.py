"""What an engine keeps its pages in outside vLLM, as a side of the benchmarks needs to know it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployment.http import Server


@dataclass(frozen=True, slots=True)
class Store:
    """A store that runs; whoever started it ends it.

    `about`: package and settings, for the report. `transfer`: for vLLM's --kv-transfer-config. `processes`: pid → what it is, in
    the order in which they are held; `descendants`: what their children are. `environment`: of the engine, on top of this
    process's. `python`: runs the engine, because that has to find the connector's packages. `loaded`: what the store itself has
    counted of loads so far, in units of its own; it is given the engine's server. None: it does not count. `leftovers`: pattern
    of what an engine's process leaves in shared memory, with its `{pid}`; removed when the engine has ended.
    `populate`: bytes of the pool where the engine's worker brings it and touches it only as it fills; 0 elsewhere.
    """

    about: str
    transfer: Mapping[str, Any]
    processes: Mapping[int, str]
    descendants: str = "child"
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    loaded: Callable[[Server], float] | None = None
    leftovers: str = ""
    populate: int = 0
