"""What a session was given up for where its agents started well and then died: how often, how, and their last words."""

from __future__ import annotations

from typing import Any, Final

from sessions_app.domain import memory_check
from sessions_app.domain.attention import excerpt
from sessions_app.domain.states import RunState
from sessions_app.models import Draft

LAST_LINES: Final = 3
"""Of the agent's log, in the sentence; the item in the inbox has more."""


def cause_of_deaths(draft: Draft) -> str:
    """One paragraph about the deaths since the last completed turn; empty where the starts failed otherwise."""
    most = draft.session.start_attempts + 1
    exits = _exits_since_success(draft)[-most:]
    in_turn = _turns_cut_short(draft)
    deaths = len(exits) or min(in_turn, most)
    if deaths < 2:  # most of these starts have failed otherwise
        return ""
    where = " in its turn" if in_turn >= deaths else ""
    how = f" ({', '.join(map(_how, exits))})" if exits else ""
    told = [line.strip() for line in draft.log_tail.splitlines() if line.strip()][-LAST_LINES:]
    words = f" Its last words: {excerpt(' / '.join(told))}" if told else ""
    return f"The agent died{where} {deaths} times in a row{how}.{words} It is not restarted again by itself."


def _exits_since_success(draft: Draft) -> list[Any]:
    """Exit codes of agents that ended unasked, the oldest first."""
    log = draft.session.events
    completed = log.filter(name="session.run.completed").exclude(payload__message_id__startswith=memory_check.PREFIX)
    success = completed.order_by("-seq").values_list("seq", flat=True).first() or 0
    died = log.filter(name="session.agent_exited", seq__gt=success, payload__expected=False).order_by("seq")
    return [payload.get("exit_code") for payload in died.values_list("payload", flat=True)]


def _turns_cut_short(draft: Draft) -> int:
    runs = draft.session.runs.order_by("started_at")
    success = runs.filter(state=RunState.COMPLETED).exclude(message_id__startswith=memory_check.PREFIX).last()
    later = runs.filter(started_at__gt=success.started_at) if success else runs
    return int(later.filter(state=RunState.INTERRUPTED).count())


def _how(exit_code: Any) -> str:
    if not isinstance(exit_code, int):
        return "exit code unknown"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
