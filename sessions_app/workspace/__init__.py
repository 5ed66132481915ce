"""Uncommitted work survives the loss of its machine, and what could not be kept is named.

The files themselves are handled on the machine of the agent: ``executors_app/agentctl/workspace`` takes snapshots, and
``executors_app/machine/git`` makes worktrees (``worktrees.py``), decides how a lost one is rebuilt
(``rebuild_plan.py``) and returns its uncommitted work (``recovery_snapshots.py``). This topic keeps what is known of
them, and shows it.
"""
