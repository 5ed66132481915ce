"""What the drivers of command line agents share: a process that prints JSON lines, and what its lines tell.

``told`` is what a line can come to, ``hearing`` takes it in, ``process`` reads one process to its end, and
``per_turn`` is the driver of every agent that has a process per turn. What differs between two such agents
is a ``Dialect``: how it is called, and how its lines read.
"""
