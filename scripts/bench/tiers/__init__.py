"""The parts of the tier benchmark: clients of both stores, what is asked of them, the disk's yardstick, and the arithmetic."""
