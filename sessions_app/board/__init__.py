"""Tasks, their board, and what can be done with many sessions at once."""
