"""The parts of the engine benchmark: two sides, what is asked of them, what is read from them, and the arithmetic."""
