"""Killing at every named point and at random: nothing lost, nothing twice (``python -m tests.chaos``)."""
