"""The part that lives inside vLLM: saves KV blocks into a tier and loads them back."""
