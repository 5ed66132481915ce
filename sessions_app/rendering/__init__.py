"""Turn text of agents and members into HTML, diffs and redacted text: pure code, run in limited processes."""
