"""Each prompt reaches its agent at most once and in order; if its delivery is in doubt, its user decides."""
