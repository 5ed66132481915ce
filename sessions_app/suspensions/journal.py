"""What the end of a turn means for the suspension of its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executors_app.agents import USAGE_LIMIT
from sessions_app.kernel.rules.states import RunState
from sessions_app.models import SessionTransaction, Turn
from sessions_app.stream.conversation import ConversationUpdate
from sessions_app.suspensions.models import settle_suspension
from sessions_app.suspensions.services import suspend_after_turn


def note_limit(
    transaction: SessionTransaction, turn: Turn, line: Mapping[str, Any], conversation: ConversationUpdate
) -> None:
    """Suspend the session if a usage limit has ended ``turn``; end its suspension if the turn was completed.

    ``line`` is the journal line that reports the end of the turn.
    """
    if turn.state == RunState.COMPLETED:
        settle_suspension(transaction)
    if line.get("code") == USAGE_LIMIT:
        suspend_after_turn(transaction, turn, line, has_worked=conversation.has_called_tools_since(turn))
