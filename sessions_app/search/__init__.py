"""Texts of conversations and tasks are found by their words, by whoever may read them, and by nobody else.

The index is filled behind the log, never with it: a job of the supervisor follows each session by a cursor
(``indexer.py``). What it lacks is said beside the results. It can be emptied at any time, and is filled again.
"""
