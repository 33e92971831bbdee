"""Plain SVG drawings of benchmark results, without any package: `draw` of `lines`, of `bars` and of `grid` make one each."""
