"""A run continues after a crash at the step where it was; nothing in a workflow runs in Kandev's own processes.

Workflows: graphs of shells, agents, functions, loops and gates in YAML or JSON, and their runs.

``language``, ``nodes``, ``loader`` and ``engine`` are pure: no database, no framework, no clock. ``services``,
``driver``, ``api``, ``forms`` and ``views`` build on them.
"""
