"""Who goes when there is no room, pure. `space.Space` is what the tier asks; the rest are its parts, each usable alone."""
