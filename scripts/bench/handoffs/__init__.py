"""The parts of the handoff benchmark: the moments between P's answer and D's first token, and the chart of them."""
