"""A start is carried out once, within its limits, and ends as running, failed or given up, with the reason.

A sweep orders a start (``recovery/sweep``), ``admission.py`` lets it begin when there is room, ``claims.py`` claims it,
``execution.py`` launches agentctl, ``agent_start.py`` starts or resumes the agent, and ``outcomes.py`` records what
came of it. Agents that have nothing to do are put to sleep by ``idle_sleep.py``.
"""
