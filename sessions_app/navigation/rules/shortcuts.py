"""The keyboard shortcuts of every page: the one place where they are listed (pure).

The help page, the lists that ``?`` opens and ``keys.js`` read this table. Single keys do nothing while
somebody types, and users can disable them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A key of the session page: what it does, and the name of the function in ``keys.js`` that does it."""

    key: str
    does: str
    action: str
    """Empty if another script acts on the key: ``review.js`` on those of its panel."""


SESSION_KEYS: Final = (
    Shortcut("c", "write a prompt", "compose"),
    Shortcut("a", "allow the request that is shown, this time only", "allow"),
    Shortcut("r", "reject the request that is shown, this time only", "reject"),
    Shortcut("s", "cancel the turn, or stop the agent; asks first", "stop"),
    Shortcut("n", "next session of the list", "nextSession"),
    Shortcut("p", "previous session of the list", "previousSession"),
    Shortcut("j", "next changed file, in Changes", ""),
    Shortcut("k", "previous changed file, in Changes", ""),
    Shortcut("f", "search this conversation", "search"),
    Shortcut("/", "find a session, a task, a page or an action", "find"),
    Shortcut("?", "list all shortcuts", "list"),
)
"""The single keys of the session page, in the order in which they are listed."""

_Rows = tuple[tuple[str, str], ...]

KEYBOARD_SHORTCUTS: Final[tuple[tuple[str, _Rows], ...]] = (
    (
        "Board",
        (
            ("j, k", "next task, previous task"),
            ("Enter", "open the task"),
            ("x", "select or deselect its sessions"),
            ("t", "select or deselect the task; with Shift, all from the last one"),
            ("/", "search"),
            ("n", "new task"),
            ("?", "list all shortcuts"),
            ("Esc", "leave the search"),
        ),
    ),
    (
        "Inbox",
        (
            ("j, k", "next item, previous item"),
            ("Enter", "open the session"),
            ("e", "mark as seen"),
            ("d", "dismiss"),
            ("?", "list all shortcuts"),
        ),
    ),
    (
        "Session",
        (
            *((each.key, each.does) for each in SESSION_KEYS),
            ("Ctrl + Enter", "send the prompt"),
            ("@", "complete a file of the workspace"),
            ("F6", "leave the terminal"),
        ),
    ),
    (
        "Everywhere",
        (
            ("Ctrl + K", "find a session, a task, a page or an action"),
            ("Tab", "the next link, button or field"),
            ("Enter, Space", "press it"),
        ),
    ),
)
"""All keyboard shortcuts, by page."""
