"""Whether an agent says that it waits by itself for the end of a limit, and until when.

Such an agent goes on without a prompt: inside its open turn, or with a turn that it begins. What it says is read, never
obeyed: a time beyond ``limit_resets.MOST`` is unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final

from executors_app.agents.limit_resets import find_reset

TEXT_LIMIT: Final = 2000
"""Characters of the end of a text that are read."""
SAMPLES: Final = (
    # Strings of the program itself: Claude Code 2.1.318, in ``@anthropic-ai/claude-agent-sdk`` 0.3.318.
    "Claude Code will continue automatically at 3pm (Europe/Berlin). Keep this session open; it may still pause.",
    "Claude Code will continue automatically shortly.",
    "Wait here, then continue automatically when the limit resets",
    # Of other agents and wrappers, in their own words.
    "Usage limit reached. Waiting until 3pm.",
    "You've hit your session limit · resets 3pm (UTC). Waiting for the limit to reset…",
    "Rate limit hit, waiting for your usage limit to reset in 2 hours.",
    "Quota exceeded. Will resume automatically in 3h 5m.",
    "Sleeping until 2026-03-10T18:00:00Z, then retrying.",
    "Limit reached. I will automatically retry at 15:00.",
)
"""Texts that must be recognised. Add one for each text that was seen."""
_SAYS_SO: Final = re.compile(
    r"\b(?:continu(?:e|es|ing)|resum(?:e|es|ing)|retry(?:ing)?|retries) automatically\b"
    r"|\bautomatically (?:continu(?:e|es|ing)|resum(?:e|es|ing)|retry(?:ing)?|retries)\b"
    r"|\b(?:waiting|sleeping|paused|pausing) until\b"
    r"|\bwaiting for (?:the |your )?(?:[\w-]+ ){0,3}(?:limits?|quota) to (?:reset|renew|refresh)",
    re.IGNORECASE,
)
_ABOUT_LIMITS: Final = re.compile(r"\b(?:limits?|quota|claude code will)\b", re.IGNORECASE)
_NEAR: Final = 300
"""Characters before an announcement in which it says what it waits for."""
_CANCELLED: Final = re.compile(r"\b(?:turned off|cancelled|canceled|will not|won't|stopped)\b", re.IGNORECASE)
_DENIED: Final = re.compile(
    r"(?:(?:\b(?:not|never|cannot|without|no longer)|n['’]t)(?:\s+\w+){0,2}"
    r"|(?<!going )(?<!set )(?<!scheduled )(?<!about )\bto)\s+$",
    re.IGNORECASE,
)
"""What comes before the words of an announcement that is none: ``will not continue automatically``, and ``enable it to
continue automatically``."""
_BEFORE: Final = 80
"""Characters before an announcement in which that is looked for."""


@dataclass(frozen=True, slots=True)
class OwnWait:
    """An agent waits by itself."""

    until: datetime | None
    """In UTC; None: it does not say until when."""
    end: int
    """Where in the text its last announcement ends: what follows is said after the wait began."""


def find_own_wait(text: str, now: datetime, local: tzinfo = UTC) -> OwnWait | None:
    """Return the last wait that a text announces; None if it announces none.

    Args:
        text: what the agent said, as much as is known; its end is read.
        now: when it said so, aware.
        local: the time zone of the agent's machine, for a time of day without a zone.
    """
    start = max(len(text) - TEXT_LIMIT, 0)
    read = text[start:]
    found = None
    for match in _SAYS_SO.finditer(read):
        found = match
    if found is None or _DENIED.search(read[max(found.start() - _BEFORE, 0) : found.start()]):
        return None
    if _CANCELLED.search(read, found.end()):
        return None
    end = _end_of_line(read, found.end())
    # ``again`` is a word after which the reader of limits expects a time or a duration.
    reset = find_reset(f"again {read[found.end() : end]}", now, local) or find_reset(read[:end], now, local)
    if reset is None and not _ABOUT_LIMITS.search(read[max(found.start() - _NEAR, 0) : end]):
        return None  # it may wait for anything, such as a build
    return OwnWait(reset.at if reset else None, start + end)


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end
