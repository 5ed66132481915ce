"""What the end of a turn means for the suspension of its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executors_app.agents import LIMIT_CODES
from sessions_app.kernel.rules.states import RunState
from sessions_app.models import SessionTransaction, Turn
from sessions_app.stream.conversation import ConversationUpdate
from sessions_app.suspensions.models import settle_suspension
from sessions_app.suspensions.services import suspend_after_turn


def note_limit(
    transaction: SessionTransaction,
    turn: Turn,
    line: Mapping[str, Any],
    conversation: ConversationUpdate,
    outage: str | None,
) -> None:
    """Suspend the session if a limit or an outage has ended ``turn``; end its suspension if the turn was completed.

    Args:
        transaction: of the session.
        turn: the turn that has ended.
        line: the journal line that reports its end.
        conversation: what the agent has said and done.
        outage: the ``ProviderTrouble`` that has ended it and has outlasted its retries.
    """
    if turn.state == RunState.COMPLETED:
        settle_suspension(transaction)
    reason = outage or line.get("code")
    if reason in LIMIT_CODES or outage:
        has_worked = conversation.has_called_tools_since(turn)
        suspend_after_turn(transaction, turn, line, reason=str(reason), has_worked=has_worked)
