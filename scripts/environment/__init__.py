"""What scripts/setup does: a virtual environment and a model in the checkout. Standard library only."""
