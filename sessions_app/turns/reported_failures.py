"""The failures that agents report as the whole text of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from executors_app.agents import COMMON_FAILURE_MESSAGES, FailureMessage
from executors_app.plugins import agent_types
from sessions_app.turns.rules.turn_ends import find_failure_message


def find_reported_failure(text: str) -> FailureMessage | None:
    """Return the failure that a turn's whole text is, in the words of any agent type; None if it is none."""
    return find_failure_message(text, _failure_messages())


@cache
def _failure_messages() -> Sequence[FailureMessage]:
    of_types = [failure for kind in agent_types().values() for failure in kind.failure_messages]
    return [*of_types, *COMMON_FAILURE_MESSAGES]
