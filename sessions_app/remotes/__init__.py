"""Branches go to no server but the one that staff have recorded for a repository, with a key or token that nobody sees.

git and ssh are run by ``executors_app/repositories/remotes.py``. What is pushed, and when, is decided in ``finish``.
"""
