"""A session changes in one way: under a lock, by tables of moves, and with every change in its log, or not at all."""
