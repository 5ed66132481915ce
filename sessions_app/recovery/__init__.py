"""A restart is a non-event: what ran runs again with its context, and the receipt says how far that is proven.

``rules/recovery.py`` decides what a sweep does about each execution, ``sweep`` reads, observes and acts, and
``continuity.py`` writes the receipt.
"""
