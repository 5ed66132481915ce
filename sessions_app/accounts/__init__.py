"""Members write, viewers read, and everyone else finds nothing."""
