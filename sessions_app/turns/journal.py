"""What journal lines about the end of a turn change: it completes, is cancelled or fails."""

from __future__ import annotations

from typing import Final

from executors_app.agents import LIMIT_CODES
from executors_app.agents.own_waits import find_own_wait
from executors_app.wire.protocol import Code, JournalKind
from sessions_app.kernel.rules.states import CANCELLED_BY_AGENT, PROMPT, SESSION, WORK
from sessions_app.models import SessionTransaction
from sessions_app.prompts.services import settle_steered
from sessions_app.recovery import continuity
from sessions_app.recovery.rules import verification
from sessions_app.starts.outcomes import record_lost_conversation
from sessions_app.stream.conversation import LEFT_OPEN, JournalLine, JournalUpdate
from sessions_app.suspensions.journal import note_limit
from sessions_app.turns import agent_turns
from sessions_app.turns.reported_failures import find_reported_failure
from sessions_app.turns.retries import find_outage, plan_retry, record_turn_failure
from sessions_app.turns.rules import transient_errors, turn_ends

EMPTY_TURN_REASONS: dict[str, str] = {
    "turn_refused": "The agent refused this request. Rephrase it, or start a new session.",
    "no_output": "The agent ended its turn, and no output or action of it has arrived since. If none follows, send the "
    "prompt again. If this happens again, the agent may have lost its conversation or its model: check its log.",
}
"""Codes and messages of turns that ended normally although the agent did nothing."""
NOTHING_SHOWN: Final = "It has shown no output or action in this turn."
"""Added to the reason that an agent gives for the early end of such a turn."""
CODES_WITHOUT_PROOF = frozenset({*EMPTY_TURN_REASONS, *LIMIT_CODES, Code.AGENT_BUSY.value})
"""Codes of failed turns that say nothing about whether the agent has its conversation."""


def complete_turn(update: JournalUpdate, line: JournalLine) -> None:
    """End a turn; one without work counts as failed, and proves nothing of the agent's memory."""
    if "stop_reason" in line:
        line = {**line, "stop_reason": turn_ends.recorded_stop_reason(line["stop_reason"])}
    failure = _failure_of(update, line)
    if failure is not None:
        code, message = failure
        if code == "turn_refused":
            continuity.resend_history(update.transaction, str(line.get("message_id")))
        fail_turn(update, {**line, "code": code, "message": message})
        return
    turn = update.transaction.open_turn
    if turn is not None and turn.message_id.startswith(verification.MEMORY_CHECK_PREFIX):
        continuity.settle_memory_check(update.transaction, update.conversation.answer_to(turn))
    _end_turn(update, line, "complete")
    if sentence := turn_ends.early_stop_sentence(str(line.get("stop_reason") or "")):
        update.conversation.add_message("status", sentence, level="warning")


def cancel_turn(update: JournalUpdate, line: JournalLine) -> None:
    """End a cancelled turn, and say so if nobody asked the agent to cancel it."""
    if line.get("by_agent") is not True:
        _end_turn(update, line, "cancel")
        return
    _end_turn(update, {**line, "stop_reason": CANCELLED_BY_AGENT}, "cancel")
    update.conversation.add_message("status", turn_ends.CANCELLED_BY_AGENT_SENTENCE, level="warning")


def fail_turn(update: JournalUpdate, line: JournalLine) -> None:
    """End a failed turn, and plan to try it again if its error may pass.

    An agent that refuses a prompt because it is busy works on something of its own: that is a turn which it began.
    """
    is_refused = line.get("code") == Code.AGENT_BUSY and update.transaction.open_turn is not None
    if is_refused:
        continuity.give_back_context(update.transaction, str(line.get("message_id")))
    _end_turn(update, _with_limit_code(line), "fail")
    session = update.transaction.session
    if is_refused and session.launch_id and SESSION.allows(session.state, "turn_started"):
        agent_turns.begin(update)


def _with_limit_code(line: JournalLine) -> JournalLine:
    """Return the line of a failed turn with the code of its limit if its error is one that does not pass soon."""
    code, message = str(line.get("code") or ""), str(line.get("message") or "")
    if code != "agent_error" or transient_errors.transient_trouble(code, message) is not None:
        return line
    failure = find_reported_failure(message)
    if failure is None or failure.code not in LIMIT_CODES:
        return line
    return {**line, "code": failure.code}


def _end_turn(update: JournalUpdate, line: JournalLine, move: str) -> None:
    """End the open turn with ``move``: *complete*, *cancel* or *fail*."""
    transaction, conversation = update.transaction, update.conversation
    is_complete, is_failed = move == "complete", move == "fail"
    unfinished_tools = conversation.unfinished_tools() if is_failed else []
    conversation.finish(LEFT_OPEN if is_complete else "cancelled")
    prompt, turn = update.find_prompt(line), transaction.open_turn
    if prompt is not None and PROMPT.allows(prompt.state, "finish"):
        transaction.move_prompt(prompt, "finish")
    settle_steered(transaction, str(line.get("message_id") or ""))
    if turn is None:
        return
    failure: dict[str, str | None] = {}
    if is_failed:
        failure = {"error_code": _text(line.get("code")), "error_message": _text(line.get("message"))}
    if is_complete:
        transaction.note_turn(turn, answer_digest=conversation.answer_digest(turn))
    reason = str(line.get("code") or line.get("stop_reason") or "")[:64]
    transaction.move_run(move, reason=reason, stop_reason=_agent_stop_reason(line), **failure)
    if move != "cancel" and line.get("code") not in CODES_WITHOUT_PROOF:
        continuity.settle_pending_receipt(transaction, failed=is_failed)
    retry, outage = None, None
    if is_failed:
        outage = find_outage(transaction, turn, prompt, line)
        retry = plan_retry(transaction, turn, prompt, line, conversation=conversation, tools=unfinished_tools)
    # A turn that is retried keeps the session working: whatever waits for its end continues to wait.
    move_if_legal(transaction, "turn_ended", work="begin" if retry else "rest")
    note_limit(transaction, turn, line, conversation, outage)
    if is_complete and not turn.message_id.startswith(verification.MEMORY_CHECK_PREFIX):
        # Not for a memory check: an agent that dies in each of its user's turns may still answer our own question
        # after each restart, and would never be given up.
        transaction.set_fields(start_attempts=0, next_restart_at=None)
    if is_failed:
        record_turn_failure(transaction, conversation, line, retry)
        record_lost_conversation(transaction, str(line.get("code") or ""), str(line.get("message") or ""))


def _failure_of(update: JournalUpdate, line: JournalLine) -> tuple[str, str] | None:
    """Return code and message of a turn that has ended normally although the agent did nothing; None for any other."""
    if line.get("stop_reason") == "refusal":
        return "turn_refused", EMPTY_TURN_REASONS["turn_refused"]
    if line.get("output") is False:
        return _empty_turn_failure(update, line)
    text = line.get("only_text")
    if not isinstance(text, str):
        return None
    failure = find_reported_failure(text)
    if failure is None or _goes_on_after_wait(update, text):
        return None
    return failure.code, text.strip()


def _goes_on_after_wait(update: JournalUpdate, text: str) -> bool:
    """Whether an agent has reported a limit, waited for its end by itself, and then said more."""
    wait = find_own_wait(text, update.transaction.at)
    return wait is not None and bool(text[wait.end :].strip())


def _empty_turn_failure(update: JournalUpdate, line: JournalLine) -> tuple[str, str] | None:
    """Return code and message of a turn without output; None if its prompt is a command that needs none."""
    prompt = update.find_prompt(line)
    if prompt is not None and turn_ends.is_agent_command(prompt.text):
        return None
    early_stop = turn_ends.early_stop_sentence(str(line.get("stop_reason") or ""))
    if early_stop:
        return "no_output", f"{early_stop} {NOTHING_SHOWN}"
    return "no_output", EMPTY_TURN_REASONS["no_output"]


def _agent_stop_reason(line: JournalLine) -> str | None:
    """Return why the agent stopped, in its own words; None if it did not say."""
    reason = line.get("stop_reason")
    if line.get("kind") == JournalKind.TURN_CANCELLED:  # its ``stop_reason`` is agentctl's word
        reason = line.get("agent_stop_reason")
    stated = turn_ends.recorded_stop_reason(reason)
    if stated == turn_ends.NO_STOP_REASON:
        return None
    return stated[:64]


def _text(value: object) -> str | None:
    """Return a value of a line as text; None if the line lacks it."""
    if value is None:
        return None
    return str(value)


def move_if_legal(transaction: SessionTransaction, move: str, *, work: str) -> None:
    """Move the session and its work state if they allow it; a session that has ended for good only keeps its log."""
    if SESSION.allows(transaction.session.state, move):
        transaction.move_session(move)
        if WORK.allows(transaction.session.work_state, work):  # not if its task is done
            transaction.move_work(work)
