"""From every page, people reach what they look for by a few keys, and see what is new where they are not.

The palette, the list of sessions beside a conversation and the keyboard shortcuts show what the user may see anyway;
they change nothing but the user's own marks.
"""
