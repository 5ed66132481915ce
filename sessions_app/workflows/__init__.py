"""Loop workflows: what a file says, as a checked graph, and what is to be done next in a run of it.

Everything here is pure, but for ``functions``, which runs a limited process: no database, no framework, no clock.
"""
