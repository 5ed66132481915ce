"""Kill processes at crash points and at random: nothing is lost or happens twice (``python -m tests.chaos``)."""
