"""Failures that an ACP agent does not report as an error: it ends, or reports one as the last text of a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from executors_app.agentctl.drivers import StartFailed
from executors_app.agentctl.drivers.events import LOGIN_PATTERN
from executors_app.agentctl.protocol import Code

_ERRORS: Final[Mapping[str, re.Pattern[str]]] = {
    # Its only machine-readable report needs a capability of one client, which would cost the output of its commands.
    "@agentclientprotocol/codex-acp": re.compile(
        r"(?:unexpected status \d{3}\b|exceeded retry limit, last status: |stream disconnected before completion: "
        r"|[Cc]onnection failed: |Selected model is at capacity\.|We're currently experiencing high demand"
        r"|Quota exceeded\.|Codex ran out of room in the model's context window|internal error; agent loop died)"
    ),
}
"""By the name that an agent gives itself, how the errors begin that it reports as text."""


def error_in_text(agent_name: str, update: Mapping[str, Any]) -> str:
    """Return the error that an update consists of, or an empty string.

    Such an update is the whole error and an empty line, which tells it from what a model writes: that comes in pieces.
    """
    pattern, content = _ERRORS.get(agent_name), update.get("content")
    if pattern is None or update.get("sessionUpdate") != "agent_message_chunk" or not isinstance(content, dict):
        return ""
    text = content.get("text")
    if not isinstance(text, str) or not text.endswith("\n\n"):
        return ""
    return text.strip() if pattern.match(text) else ""


def agent_ended(message: str, stderr: str) -> StartFailed:
    """Return the failure of a start whose agent ended; its last words tell whether it wants a login."""
    if LOGIN_PATTERN.search(stderr):
        return StartFailed(Code.AUTH_REQUIRED, stderr[-1000:], permanent=True)
    return StartFailed(Code.AGENT_EXITED, f"{message}: {stderr[-1000:]}" if stderr else message)
