"""Shared parts of the drivers of command-line agents, whose processes print JSON lines.

``process`` runs one process and reads its lines, ``stream_json`` parses Claude Code's format, and ``per_turn`` is the
driver of every agent with a process per turn. How such an agent is called, and how its lines are parsed, is its
``Dialect``. ``drivers.events`` defines the events that lines are parsed into.
"""
