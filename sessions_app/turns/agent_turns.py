"""Turns that an agent begins without a prompt: their begin, their end, and how long prompts wait for them.

The lines of the journal begin them, so that what is read again after a crash begins the same ones. They end when the
agent announces it, when it has been quiet, with a cancel, with the next prompt that the agent takes, or with the agent.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Exists, OuterRef, Subquery
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.agents import LIMIT_CODES
from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.wire.protocol import AGENT_TURN_PREFIX, Code, JournalKind
from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    SESSION,
    WORK,
    PromptKind,
    PromptState,
    RunState,
    SessionState,
    TurnOrigin,
)
from sessions_app.models import Lease, Message, Prompt, SessionTransaction, TaskSession, Turn, session_transaction
from sessions_app.stream.conversation import (
    LEFT_OPEN,
    SUB_AGENT,
    TOOL_KINDS,
    ConversationUpdate,
    JournalLine,
    JournalUpdate,
    schedule_writes,
)
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.suspensions.models import settle_own_wait
from sessions_app.suspensions.services import suspend_after_turn
from sessions_app.turns.models import BEGUN_AT
from sessions_app.turns.reported_failures import find_reported_failure
from sessions_app.turns.rules import agent_turns as rules
from sessions_app.turns.rules.turn_ends import FAILURE_TEXT_LIMIT

QUIET: Final = "quiet"
"""Reason of such a turn that ended because nothing of the agent arrived any more."""
ANNOUNCED: Final = "announced"
"""Reason of such a turn whose end the agent has announced."""
_ANNOUNCING_LAUNCH: Final = "announces_turn_ends"
"""Key in ``TaskSession.metadata``: the launch of the agent that has announced the end of a turn of its own."""
_TEXT_ROLES: Final = {JournalKind.MESSAGE_AGENT: "agent", JournalKind.MESSAGE_THOUGHT: "thought"}
_RESULTS: Final = frozenset({"completed", "failed"})


def is_agent_turn(turn: Turn | None) -> bool:
    """Whether the agent began this turn without a prompt."""
    return turn is not None and turn.origin == TurnOrigin.AGENT


def may_begin(update: JournalUpdate, line: JournalLine) -> bool:
    """Whether ``line`` may be the first of a turn of the agent's own: only a session at rest has no open turn.

    Cheap, because it is asked for every line, and these columns are read in any case.
    """
    session = update.transaction.session
    is_at_rest = session.state == SessionState.WAITING_FOR_INPUT and bool(session.launch_id)
    return is_at_rest and line["kind"] in rules.WORK_KINDS


def begin_if_due(update: JournalUpdate, line: JournalLine) -> bool:
    """Begin a turn of the agent's own if ``line`` arrived outside a turn and is new work; return whether it did."""
    if not may_begin(update, line):
        return False
    turn = update.transaction.newest_run
    if turn is None or turn.ended_at is None:
        return False  # before its first prompt an agent only greets; a wait for something outside is no turn of its own
    if not rules.begins_turn(_describe(update, line, turn)):
        return False
    begin(update)
    return True


def begin(update: JournalUpdate) -> None:
    """Begin a turn of the agent's own; whatever earlier turns have left open is closed."""
    transaction = update.transaction
    update.conversation.begin_turn()
    snapshot = None
    if transaction.execution is not None:
        snapshot = transaction.execution.snapshot_announced
    turn = transaction.start_run(
        f"{AGENT_TURN_PREFIX}{uuid.uuid4()}", origin=TurnOrigin.AGENT, snapshot_before=snapshot
    )
    update.conversation.note_begin(turn)
    _move(transaction, "turn_started", work="begin")
    crash_points.reached("own_turn.begun", transaction.session.id)


def _describe(update: JournalUpdate, line: JournalLine, turn: Turn) -> rules.OutsideLine:
    assert turn.ended_at is not None  # noqa: S101 - checked by the caller
    return rules.OutsideLine(
        kind=str(line["kind"]),
        since_end=update.transaction.at - turn.ended_at,
        continues_text=_continues_text(update.conversation, line),
        reports_earlier_call=_reports_earlier_call(update.conversation, line),
        is_replayed=bool(line.get("may_be_replayed")) and _is_known(update.conversation, line),
    )


def _continues_text(conversation: ConversationUpdate, line: JournalLine) -> bool:
    if line["kind"] == JournalKind.MESSAGE_SUB_AGENT:
        return conversation.is_growing("status", str(line.get(SUB_AGENT) or "Sub-agent"))
    role = _TEXT_ROLES.get(line["kind"])
    return role is not None and conversation.is_growing(role)


def _reports_earlier_call(conversation: ConversationUpdate, line: JournalLine) -> bool:
    """Whether a line is about a tool call that is known: an update of it, or a repetition with its result."""
    if line["kind"] not in TOOL_KINDS:
        return False
    if line["kind"] == JournalKind.TOOL_CALL and str(line.get("status") or "") not in _RESULTS:
        return False
    key = key_of_tool(line)
    return bool(conversation.known_tool_fields(key)) or conversation.is_known_tool(key)


def _is_known(conversation: ConversationUpdate, line: JournalLine) -> bool:
    role = _TEXT_ROLES.get(line["kind"])
    if role is not None:
        return conversation.is_known(role, str(line.get("text", "")))
    return line["kind"] in TOOL_KINDS and conversation.is_known_tool(key_of_tool(line))


def end_announced(update: JournalUpdate, line: JournalLine) -> None:
    """End the agent's own turn because the agent says so; prompts that it refused meanwhile are due now."""
    transaction = update.transaction
    turn = transaction.open_turn
    if turn is None or not is_agent_turn(turn) or turn.state != RunState.RUNNING:
        return  # the end of a prompt's turn is the agent's answer to it
    metadata = {**transaction.session.metadata, _ANNOUNCING_LAUNCH: transaction.session.launch_id}
    transaction.set_fields(metadata=metadata)
    end(transaction, update.conversation, "complete", ANNOUNCED, stop_reason=_stop_reason(line))


def _stop_reason(line: JournalLine) -> str | None:
    reason = line.get("stop_reason")
    if isinstance(reason, str) and reason:
        return reason[:64]
    return None


def end(
    transaction: SessionTransaction,
    conversation: ConversationUpdate,
    move: str,
    reason: str,
    *,
    stop_reason: str | None = None,
) -> None:
    """End the agent's own turn that is open with ``move``; a prompt that waits to be sent again keeps the work open.

    One in which the agent has only reported a limit has failed, and suspends the session as a prompted turn does.
    """
    turn, limit = transaction.open_turn, None
    if move == "complete" and turn is not None:
        limit = _reported_limit(conversation, turn)
    conversation.finish(LEFT_OPEN if move == "complete" else "cancelled")
    if limit is None:
        transaction.move_run(move, reason=reason, stop_reason=stop_reason)
    else:
        transaction.move_run(
            "fail", reason=limit.code, stop_reason=stop_reason, error_code=limit.code, error_message=limit.text
        )
    waiting = Prompt.objects.filter(session=transaction.session, kind=PromptKind.RETRY, state=PromptState.QUEUED)
    if reason != QUIET:  # silence alone does not prove that the agent takes the prompt now
        waiting.filter(trouble=Code.AGENT_BUSY).update(not_before=None)
    _move(transaction, "turn_ended", work="begin" if waiting.exists() else "rest")
    if limit is not None and turn is not None:
        suspend_after_turn(transaction, turn, {"message": limit.text}, reason=limit.code, has_worked=True)
    elif move == "complete":
        settle_own_wait(transaction)
    session_id = transaction.session.id
    crash_points.reached("own_turn.ended", session_id)
    on_commit(lambda: crash_points.reached("own_turn.end_committed", session_id))


@dataclass(frozen=True, slots=True)
class _ReportedLimit:
    """A limit that is all that the agent has reported in a turn."""

    code: str
    text: str


def _reported_limit(conversation: ConversationUpdate, turn: Turn) -> _ReportedLimit | None:
    text = conversation.only_text(turn, FAILURE_TEXT_LIMIT).strip()
    failure = find_reported_failure(text) if text else None
    if failure is None or failure.code not in LIMIT_CODES:
        return None
    return _ReportedLimit(failure.code, text)


def _move(transaction: SessionTransaction, move: str, *, work: str) -> None:
    if SESSION.allows(transaction.session.state, move):
        transaction.move_session(move)
        if WORK.allows(transaction.session.work_state, work):  # not if its task is done
            transaction.move_work(work)


def holds_prompts(turn: Turn) -> bool:
    """Whether prompts wait for the end of this turn, which the agent began."""
    return rules.holds_prompts(
        since_begin=timezone.now() - turn.begun_at,
        is_waiting=turn.state == RunState.WAITING,
        hold_limit=_hold_limit(),
    )


def _hold_limit() -> timedelta:
    return timedelta(seconds=settings.KANDEV_AGENT_TURN_LIMIT)


def end_quiet_turns(held: Mapping[uuid.UUID, Lease]) -> int:
    """End the agents' own turns that have been silent for long enough; return how many.

    ``held`` are the sessions to check, with the leases under which to write. Their journals must have been read.
    """
    found = _load_quiet_turns(held)
    return sum(guard_job(turn.session_id, "its own turn", _end_quiet, turn, held[turn.session_id]) for turn in found)


def sessions_with_quiet_turns(sessions: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Return those of ``sessions`` of whose agent's own turn nothing has been logged for as long as ends it."""
    return [turn.session_id for turn in _load_quiet_turns(sessions)]


def _load_quiet_turns(sessions: Collection[uuid.UUID]) -> list[Turn]:
    if not sessions:
        return []
    turns = Turn.objects.filter(origin=TurnOrigin.AGENT, state=RunState.RUNNING, session_id__in=sessions)
    quiet = timezone.now() - timedelta(seconds=settings.KANDEV_AGENT_TURN_QUIET)
    found = turns.filter(session__updated_at__lt=quiet)
    found = found.annotate(has_open_tool=_HAS_OPEN_TOOL, left_out_at=_LEFT_OUT_AT).select_related("session")
    return [turn for turn in found if _is_quiet(turn.session, turn.has_open_tool, turn.left_out_at)]


_HAS_OPEN_TOOL = Exists(Message.objects.filter(session_id=OuterRef("session_id"), role="tool", complete=False))
_LEFT_OUT_AT = Subquery(
    ExecutorRunning.objects.filter(session_id=OuterRef("session_id"), output_left_out__gt=0).values("updated_at")[:1]
)
"""When lines were last read of an agent whose output is left out: it changes nothing else in its session."""


def _is_quiet(session: TaskSession, has_open_tool: bool, left_out_at: datetime | None) -> bool:
    """Whether nothing of a session's agent was read for as long as ends a turn of its own."""
    limit = rules.quiet_limit(
        has_open_tool=has_open_tool,
        announces_end=bool(session.launch_id) and session.metadata.get(_ANNOUNCING_LAUNCH) == session.launch_id,
        quiet=timedelta(seconds=settings.KANDEV_AGENT_TURN_QUIET),
        hold_limit=_hold_limit(),
    )
    last_output = session.updated_at
    if left_out_at is not None:
        last_output = max(last_output, left_out_at)
    return bool(timezone.now() - last_output >= limit)


def _end_quiet(turn: Turn, lease: Lease) -> bool:
    with session_transaction(turn.session_id, lease) as transaction:
        open_turn = transaction.open_turn
        if open_turn is None or open_turn.id != turn.id or open_turn.state != RunState.RUNNING:
            return False
        conversation, execution = ConversationUpdate(transaction), transaction.execution
        left_out_at = execution.updated_at if execution is not None and execution.output_left_out else None
        if not _is_quiet(transaction.session, bool(conversation.unfinished_tools()), left_out_at):
            return False  # output has arrived since the turn was read
        end(transaction, conversation, "complete", QUIET)
        schedule_writes([conversation])
    return True


def sessions_past_limit(sessions: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Return those of ``sessions`` whose agent works on its own beyond the limit while a prompt waits for it."""
    began_before = timezone.now() - _hold_limit()
    turns = Turn.objects.alias(begin=BEGUN_AT).filter(
        Exists(Prompt.objects.filter(session_id=OuterRef("session_id"), state=PromptState.QUEUED)),
        origin=TurnOrigin.AGENT,
        state=RunState.RUNNING,
        begin__lte=began_before,
        session_id__in=sessions,
    )
    return list(turns.order_by().values_list("session_id", flat=True))
