"""Asking an agent what its last request was: one small turn, where a replay does not show what it remembers."""

from __future__ import annotations

import re
from typing import Final

from sessions_app.domain.verification import shows

KIND: Final = "check"
"""Of the prompt."""
PREFIX: Final = "check:"
"""How its message_id begins; the launch that it checks follows."""
PROMPT: Final = (
    "This message checks what you remember after a restart. Quote the last request that you were given before it, "
    "word for word and nothing else. Use no tool and change nothing. If you do not know it, answer only: UNKNOWN"
)
NOT_QUOTED: Final = "The agent was asked for its last request and did not quote it."
_TOO_SHORT: Final = 24
"""A request of fewer characters may be part of any answer: then the whole answer has to be it."""


def quotes(answer: str, request: str) -> bool:
    """Whether an answer to ``PROMPT`` is, or holds, the request that our log has as the last one."""
    wanted, said = _words(request), _words(answer)
    if not wanted or not said:
        return False
    return said == wanted if len(wanted) < _TOO_SHORT else shows(answer, request)


def _words(text: str) -> str:
    """The words of a text: how it is quoted, and with which punctuation, does not count."""
    return " ".join(re.findall(r"\w+", text.casefold()))
