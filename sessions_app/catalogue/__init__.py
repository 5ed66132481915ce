"""What a team can start sessions with: repositories, executors and what runs on them.

Agent types and profiles are in ``agents``.
"""
