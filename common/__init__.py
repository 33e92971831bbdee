"""What the processes share: the wire format, the bus, keys, pools, configuration and life cycle."""
