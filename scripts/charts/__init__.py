"""Plain SVG drawings of benchmark results, without any package. `lines.draw` makes one."""
