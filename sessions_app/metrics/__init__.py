"""A figure is counted from rows or added in the transaction that it counts, so it survives a restart."""
