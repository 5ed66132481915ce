"""How agents say why they stopped: reasons of turns, missing logins, and lost conversations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from executors_app.agentctl.drivers import StartFailed
from executors_app.wire.protocol import Code

LOGIN_PATTERN: Final = re.compile(
    r"\b(?:log|sign) ?in\b|/login\b|logged out|not authenticated|authentication[ _](?:required|failed|error)"
    r"|invalid (?:authentication credentials|api key|bearer token)|(?:oauth |access )?token (?:has |is )?expired"
    r"|(?:missing|no|set (?:an?|the)) api key|invalid x-api-key"
    r"|api[ _]key (?:is |has )?(?:missing|required|not set|not found|invalid|not valid|expired)"
    r"|(?:must be|are not|aren't|not) (?:logged|signed) in|\bauth required\b|\bunauthenticated\b"
    r"|please (?:re-?)?authenticate\b"
    r"|no auth(?:entication)? (?:credentials|information|tokens?) (?:found|available)"
    r"|token (?:has been |was )?(?:revoked|invalidated)\b|\binvalid_grant\b",
    re.IGNORECASE,
)
"""Phrases of agents without a login. They exclude a bare 401, which may come from a provider."""
BLANK_STOP_REASON: Final = ""
"""Stop reason of a turn whose agent did not say why it ended. It is not taken for a regular end."""


def stop_reason_text(reason: object) -> str:
    """Return a stop reason as the agent gave it; ``BLANK_STOP_REASON`` for null and blank texts."""
    if reason is None:
        return BLANK_STOP_REASON
    return str(reason).strip()


def matches_gone_pattern(text: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern of the agent type recognises ``text`` as the error for a missing conversation."""
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def failure_code(text: str) -> str:
    """Return the code of a turn that ended with this error of the agent."""
    if LOGIN_PATTERN.search(text):
        return Code.AUTH_REQUIRED
    return "agent_error"


def agent_ended(message: str, stderr: str) -> StartFailed:
    """Return the failure of a start whose agent ended; its last output shows whether it requires a login."""
    if LOGIN_PATTERN.search(stderr):
        return StartFailed(Code.AUTH_REQUIRED, stderr[-1000:], permanent=True)
    if stderr:
        message = f"{message}: {stderr[-1000:]}"
    return StartFailed(Code.AGENT_EXITED, message)
