"""A turn begins once and ends once, whatever dies in between, and its end is recorded as what it was.

Journal lines begin and end turns (``stream/ingest/handlers.py``). ``interruptions.py`` ends the turn of an agent that
is gone and decides whether the next agent continues it; ``retries.py`` repeats a turn that failed for a passing reason.
"""
