"""The level below memory: evicted pages in files of this node. `level.DiskLevel` is what the tier asks; `files` does the I/O."""
