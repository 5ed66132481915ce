"""How a turn ended that its agent did not report as failed: regularly, early, or with a failure as its text.

Some agents report limits and errors of their provider as the whole text of a turn that ends normally. The samples are
data of the agent types (``AgentType.failure_messages``), and ``COMMON_FAILURE_MESSAGES`` has the words of common
providers. A text is recognised only if it is all that the turn has produced. The patterns of every type apply, because
custom profiles run the same programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from executors_app.agents import FailureMessage

REGULAR_STOPS: Final = frozenset({"", "end_turn", "stop_sequence", "cancelled"})
NO_STOP_REASON: Final = "no_stop_reason"
"""Recorded for a turn whose agent did not say why it ended."""
_EARLY_STOPS: Final = {
    NO_STOP_REASON: "The agent ended its turn without saying why (its answer has no stop reason).",
    "max_tokens": "The agent stopped because its answer reached the maximum length (`max_tokens`).",
    "max_turn_requests": "The agent stopped because it reached its maximum number of requests to the model in one turn "
    "(`max_turn_requests`).",
}
CANCELLED_BY_AGENT_SENTENCE: Final = (
    "The agent cancelled this turn on its own; nobody asked it to. "
    "Its work may be unfinished: send a prompt to continue."
)
_REASON_LIMIT: Final = 64
FAILURE_TEXT_LIMIT: Final = 600
"""Maximum number of characters of a failure that is reported as text; agentctl reports no longer texts for it."""
_COMMAND: Final = re.compile(r"/[A-Za-z][\w:.-]*(?:\s|$)")
_DECORATION: Final = re.compile(r"^(?:[^\w\"'(]|_)+")
"""Marks and symbols before a failure."""


def recorded_stop_reason(reason: object) -> str:
    """Return the stop reason of a journal line as it is recorded; ``NO_STOP_REASON`` for a null or blank one."""
    if reason is None:
        return NO_STOP_REASON
    return str(reason).strip() or NO_STOP_REASON


def early_stop_sentence(stop_reason: str) -> str:
    """Return what to say about a turn that ended before its agent was done; empty for a regular end."""
    if stop_reason in REGULAR_STOPS:
        return ""
    reason = stop_reason[:_REASON_LIMIT]
    unknown = f"The agent stopped for a reason that Kandev does not know: {reason}."
    return f"{_EARLY_STOPS.get(reason, unknown)} Its work may be unfinished: send a prompt to continue."


def is_agent_command(prompt: str) -> bool:
    """Whether a prompt is a command of the agent, such as ``/compact``, which may end without any output."""
    return _COMMAND.match(prompt.lstrip()) is not None


def find_failure_message(text: str, failures: Iterable[FailureMessage]) -> FailureMessage | None:
    """Return the failure that a turn's whole text is; None if it is none."""
    if len(text) > FAILURE_TEXT_LIMIT:
        return None
    plain = _DECORATION.sub("", text.replace("\u2019", "'"))
    return next((failure for failure in failures if _compile(failure.pattern).match(plain)), None)


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
