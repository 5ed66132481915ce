"""Text of agents and members becomes HTML, diffs and redacted text in limited processes, and is stored."""
