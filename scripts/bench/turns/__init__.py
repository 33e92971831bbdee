"""The parts of the multi-turn benchmark: what is asked and when, the client, the processes of a configuration, the arithmetic."""
