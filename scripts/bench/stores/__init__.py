"""The stores that an engine of the benchmarks may keep its pages in: how each is started, what is asked, what comes out."""
