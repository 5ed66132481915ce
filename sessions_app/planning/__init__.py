"""Who does a task, how urgent it is and what it is about: shown on its card, filtered on the board, and nothing more.

None of it has an effect on sessions. A task without a row has no assignee and no priority.
"""
