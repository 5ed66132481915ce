"""Handlers for each kind of journal line, which turn it into events, messages and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from executors_app.agentctl import questions
from executors_app.agentctl.protocol import JournalKind
from executors_app.agentctl.questions import recorded_answer
from executors_app.agentctl.questions.schema import parse_stored_question
from sessions_app.domain import verification
from sessions_app.domain.states import PROMPT, SESSION, WORK, PermissionState, RequestKind, RunState
from sessions_app.domain.usage import parse_usage
from sessions_app.models import MessageDraft, PermissionRequest, Prompt, SessionTransaction, waits
from sessions_app.models.bulk import update_row
from sessions_app.services.mcp_servers import record_left_out
from sessions_app.services.questions import undelivered_content
from sessions_app.supervisor import continuity
from sessions_app.supervisor.conversation import (
    ConversationUpdate,
    add_permission_message,
    add_question_message,
    complete_tool_call,
    update_open_requests,
)
from sessions_app.supervisor.ingest.folding import TEXT_KINDS, AgentSettingsUpdate, JournalLine
from sessions_app.supervisor.interrupted_turns import (
    interrupt_turn,
    plan_retry,
    record_agent_death,
    record_agent_stopped,
    record_turn_failure,
    reset_attempts_if_stable,
)
from sessions_app.supervisor.outcomes import record_lost_conversation

UNSTORABLE = "unwritable"
"""Kind of the line that replaces one that cannot be written; ``was`` holds the original kind."""
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "message_id": (str, type(None)),
    "tool_call_id": str,
    "permission_id": str,
    "options": list,
    "attachments": list,
    "tool_call": dict,
    "question": dict,
    "usage": dict,
}


class LineApplier:
    """Applies a batch of journal lines, in order, to the transaction of one session."""

    def __init__(
        self,
        transaction: SessionTransaction,
        lines: Sequence[JournalLine] = (),
        unfinished: Sequence[MessageDraft] | None = None,
    ):
        self.transaction = transaction
        tool_keys = {key for line in lines if (key := _tool_key_of_request(line))}
        self.conversation = ConversationUpdate(transaction, tool_keys, unfinished)
        self.agent_settings = AgentSettingsUpdate(transaction)
        self.agent_gone = False
        """Whether a line reported that the agent process ended without a request."""

    def apply(self, line: JournalLine) -> None:
        """Apply one line; an unknown kind changes nothing. Raises TypeError or KeyError if the line is malformed."""
        kind = str(line.get("kind"))
        handler = LINE_HANDLERS.get(kind)
        if handler is None:
            return
        _validate(line)
        self.transaction.at = datetime.fromtimestamp(float(line["ts"]), UTC)
        self.transaction.clear_stall()
        if kind not in TEXT_KINDS:
            self.conversation.end_chunk()
        handler(self, line)

    def finish(self) -> None:
        """Write the agent's reports; call it once, after the last line. The conversation is written by the caller."""
        self.agent_settings.write()

    def find_prompt(self, line: JournalLine) -> Prompt | None:
        """Return the prompt that a line names, or None."""
        return self.transaction.session.prompts.filter(message_id=line.get("message_id")).first()


def _validate(line: JournalLine) -> None:
    """Raise TypeError or KeyError for a malformed line, because readers of the log rely on these fields."""
    for name, expected in FIELD_TYPES.items():
        if name in line and not isinstance(line[name], expected):
            raise TypeError(f"{name} of a {line['kind']} is {type(line[name]).__name__}")
    if "options" in line and not all("option_id" in option for option in line["options"]):
        raise KeyError("option_id")


def _on_prompt_accepted(applier: LineApplier, line: JournalLine) -> None:
    """Begin the turn, and add the prompt's text to the conversation: it enters only once accepted (rule 14)."""
    transaction, message_id = applier.transaction, str(line["message_id"])
    row = applier.find_prompt(line)
    applier.conversation.finish()
    transaction.accept_run(message_id)
    kind = row.kind if row else str(line.get("prompt_kind", "user"))
    text = row.text if row else str(line.get("text", ""))  # the row's text has no injected history before it
    files = row.attachments if row else line.get("attachments", [])
    applier.conversation.add_message(
        "user", text, key=message_id, kind=kind, **({"attachments": files} if files else {})
    )
    if row is not None and PROMPT.allows(row.state, "accept"):
        transaction.move_prompt(row, "accept", journal_epoch=line["epoch"])
    _move_if_legal(transaction, "turn_started", work="begin")


def _on_prompt_delivered(applier: LineApplier, line: JournalLine) -> None:
    row = applier.find_prompt(line)
    if row is not None and PROMPT.allows(row.state, "deliver"):
        applier.transaction.move_prompt(row, "deliver")
    continuity.mark_history_delivered(applier.transaction, str(line.get("message_id")))


def _text_handler(role: str) -> Callable[[LineApplier, JournalLine], None]:
    def apply_text(applier: LineApplier, line: JournalLine) -> None:
        applier.conversation.append_text(role, str(line.get("text", "")))

    return apply_text


def _on_foreign_user_text(applier: LineApplier, line: JournalLine) -> None:
    """Store text that the agent attributes to the user as a status message, apart from the user's own (rule 14)."""
    applier.conversation.finish_text()
    applier.conversation.add_message("status", str(line.get("text", "")), attributed_to="user")


TOOL_KINDS = frozenset({JournalKind.TOOL_CALL.value, JournalKind.TOOL_UPDATE.value})
TOOL_FIELDS = ("tool_call_id", "title", "tool_kind", "status", "content", "locations", "raw_input", "raw_output")


def _on_tool_call(applier: LineApplier, line: JournalLine) -> None:
    values = {name: line[name] for name in TOOL_FIELDS if name in line}
    key, run = _tool_key(line), applier.transaction.open_turn
    applier.conversation.update_tool(key, values)
    if run is not None and run.state == RunState.WAITING:
        update_open_requests(applier.transaction, key, applier.conversation.known_tool_fields(key))


def _tool_key_of_request(line: JournalLine) -> str:
    """Return the key of the tool call that a line is about, or an empty string."""
    kind = line.get("kind")
    if kind in TEXT_KINDS:
        return ""
    if kind in TOOL_KINDS:
        return _tool_key(line)
    asked = line.get("tool_call") if kind == JournalKind.PERMISSION_REQUESTED else None
    return _tool_key(asked) if isinstance(asked, dict) else ""


def _tool_key(line: JournalLine) -> str:
    return str(line.get("tool_call_id", ""))[:200]


def _on_usage(applier: LineApplier, line: JournalLine) -> None:
    """Merge the agent's usage figures: a figure that it no longer reports keeps its last value."""
    transaction = applier.transaction
    transaction.set_fields(usage={**transaction.session.usage, **parse_usage(line.get("usage", {}))})


def _on_permission_requested(applier: LineApplier, line: JournalLine) -> None:
    transaction, run = applier.transaction, applier.transaction.open_turn
    options, asked = line.get("options", []), line.get("tool_call", {})
    known = applier.conversation.known_tool_fields(_tool_key(asked))
    tool_call = complete_tool_call(asked, known)
    question = parse_stored_question(line["question"]) if "question" in line else {}
    kind = RequestKind.QUESTION if question else RequestKind.PERMISSION
    _, made = PermissionRequest.objects.get_or_create(
        id=str(line["permission_id"]),
        defaults={
            "session": transaction.session,
            "run": run,
            "tool_call": tool_call,
            "options": options,
            "kind": kind,
            "question": question,
            "requested_at": transaction.at,
        },
    )
    if made:
        told: dict[str, Any] = {"question": question} if question else {}
        waits.begin_permission_wait(transaction, str(line["permission_id"]), run, kind)
        transaction.record_event(
            "session.permission.requested",
            permission_id=str(line["permission_id"]),
            run_id=str(run.id) if run else None,
            tool_call=tool_call,
            options=options,
            **told,
        )


def _permission_settled_handler(state: str) -> Callable[[LineApplier, JournalLine], None]:
    """Return the handler that settles a permission request as ``state`` and resumes its turn after the last one."""

    def settle(applier: LineApplier, line: JournalLine) -> None:
        transaction = applier.transaction
        asked = transaction.session.permissions.filter(
            id=line.get("permission_id"), state=PermissionState.PENDING
        ).first()
        if asked is None:
            return
        asked.state, asked.settled_at = state, transaction.at
        asked.option_id = str(line.get("option_id") or "")[:128]
        asked.reason = str(line.get("reason") or "")[:64]
        if asked.option_id == questions.ACCEPT:
            asked.answer = recorded_answer(asked.question, undelivered_content(asked))
        asked.sealed_answer = {}
        asked.save(update_fields=["state", "settled_at", "option_id", "reason", "answer", "sealed_answer"])
        is_question = asked.kind == RequestKind.QUESTION
        told = {"status": str(asked.question_status), "answer": asked.answer} if is_question else {}
        transaction.record_event(
            "session.permission.resolved",
            permission_id=asked.id,
            state=state,
            option_id=asked.option_id,
            reason=str(line.get("reason", "")),
            **told,
        )
        if is_question:
            add_question_message(applier.conversation, asked)
        elif state == "resolved":
            add_permission_message(applier.conversation, asked)
        waits.revoke_tokens(transaction, str(line.get("reason") or state), wait_id=asked.id)
        if (
            transaction.open_turn is not None
            and not transaction.session.permissions.filter(state=PermissionState.PENDING).exists()
        ):
            transaction.move_run("resume")

    return settle


EMPTY_TURN_REASONS: dict[str, str] = {
    "turn_refused": "The agent refused this request. Rephrase it, or start a new session.",
    "no_output": "The agent ended its turn without any output or action. Send the prompt again. If this happens "
    "again, the agent may have lost its conversation or its model: check its log.",
}
"""Codes and messages of turns that ended normally although the agent did nothing."""


def _on_turn_completed(applier: LineApplier, line: JournalLine) -> None:
    """End a turn; one that was refused or has no output counts as failed, and proves nothing of the agent's memory."""
    code = "turn_refused" if line.get("stop_reason") == "refusal" else ""
    if not code and line.get("output") is False:  # missing from an older agentctl's lines
        code = "no_output"
    if code == "turn_refused":
        continuity.resend_history(applier.transaction, str(line.get("message_id")))
    if code:
        _turn_ended_handler("fail")(applier, {**line, "code": code, "message": EMPTY_TURN_REASONS[code]})
        return
    if str(line.get("message_id")).startswith(verification.MEMORY_CHECK_PREFIX):
        answer = applier.conversation.agent_text_since(str(line["message_id"]))
        continuity.settle_memory_check(applier.transaction, answer)
    _turn_ended_handler("complete")(applier, line)


def _turn_ended_handler(move: str) -> Callable[[LineApplier, JournalLine], None]:
    """Return the handler that ends the open turn with ``move``: *complete*, *cancel* or *fail*."""

    def end(applier: LineApplier, line: JournalLine) -> None:
        transaction = applier.transaction
        tools = applier.conversation.unfinished_tools() if move == "fail" else []
        applier.conversation.finish(tool_status="" if move == "complete" else "cancelled")
        row, run = applier.find_prompt(line), transaction.open_turn
        if row is not None and PROMPT.allows(row.state, "finish"):
            transaction.move_prompt(row, "finish")
        if run is None:
            return
        failure = {"error_code": line.get("code"), "error_message": line.get("message")} if move == "fail" else {}
        transaction.move_run(move, reason=str(line.get("code") or line.get("stop_reason") or "")[:64], **failure)
        if move != "cancel" and line.get("code") not in EMPTY_TURN_REASONS:
            continuity.settle_pending_receipt(transaction, failed=move == "fail")
        retry = None
        if move == "fail":
            retry = plan_retry(transaction, run, row, line, conversation=applier.conversation, tools=tools)
        # A turn that is retried keeps the session working: whatever waits for its end continues to wait.
        _move_if_legal(transaction, "turn_ended", work="begin" if retry else "rest")
        if move == "complete" and not run.message_id.startswith(verification.MEMORY_CHECK_PREFIX):
            # Not for a memory check: an agent that dies in each of its user's turns may still answer our own question
            # after each restart, and would never be given up.
            transaction.set_fields(start_attempts=0, next_restart_at=None)
        if move == "fail":
            record_turn_failure(transaction, applier.conversation, line, retry)
            record_lost_conversation(transaction, str(line.get("code") or ""), str(line.get("message") or ""))

    return end


def _on_agent_exited(applier: LineApplier, line: JournalLine) -> None:
    """Write that the agent process has ended: interrupt its turn, and mark the session as without an agent."""
    is_present = line.get("launch_id") in (None, applier.transaction.session.launch_id)
    if is_present:  # the end of an earlier agent does not concern the one that is running
        reset_attempts_if_stable(applier.transaction, until=applier.transaction.at)
    interrupt_turn(applier.transaction, "agent_exited", applier.conversation)
    if is_present:
        (record_agent_stopped if line.get("expected") else record_agent_death)(applier.transaction)
    applier.transaction.record_event(
        "session.agent_exited", exit_code=line.get("exit_code"), expected=bool(line.get("expected"))
    )
    applier.agent_gone = applier.agent_gone or not line.get("expected")


def _on_unstorable(applier: LineApplier, line: JournalLine) -> None:
    applier.transaction.record_event(
        "session.journal_skipped", reason=UNSTORABLE, count=1, seq=line["seq"], kind=str(line["was"])[:64]
    )


def _on_snapshot(applier: LineApplier, line: JournalLine) -> None:
    """Record a new snapshot of the working tree, which ``WorkspaceSync`` then transfers to the archive."""
    _announce_snapshot(applier.transaction, str(line.get("commit", "")))
    applier.transaction.record_event(
        "session.workspace.changed",
        reason=str(line.get("reason", "")),
        commit=str(line.get("commit", "")),
        dirty=bool(line.get("dirty")),
    )


def _on_servers_left_out(applier: LineApplier, line: JournalLine) -> None:
    record_left_out(applier.transaction, str(line.get("launch_id")), line.get("servers"))


def _announce_snapshot(transaction: SessionTransaction, commit: str) -> None:
    # In the line's transaction: after a crash, these columns still show that the snapshot has not arrived.
    execution = transaction.execution
    if execution is None or not commit:
        return
    was_due = execution.snapshot_announced != execution.snapshot_arrived
    execution.snapshot_announced = commit[:64]  # hostile: no longer than the column
    if execution.snapshot_announced == execution.snapshot_arrived:
        execution.snapshot_due_since = None
    elif not was_due:
        execution.snapshot_due_since = transaction.at
    update_row(execution, ("snapshot_announced", "snapshot_due_since"))


def _move_if_legal(transaction: SessionTransaction, move: str, *, work: str) -> None:
    """Move the session and its work state if they allow it; a session that has ended for good only keeps its log."""
    if SESSION.allows(transaction.session.state, move):
        transaction.move_session(move)
        if WORK.allows(transaction.session.work_state, work):  # not if its task is done
            transaction.move_work(work)


LINE_HANDLERS: dict[str, Callable[[LineApplier, JournalLine], object]] = {
    JournalKind.PROMPT_ACCEPTED: _on_prompt_accepted,
    JournalKind.PROMPT_DELIVERED: _on_prompt_delivered,
    JournalKind.MESSAGE_USER: _on_foreign_user_text,
    JournalKind.MESSAGE_AGENT: _text_handler("agent"),
    JournalKind.MESSAGE_THOUGHT: _text_handler("thought"),
    JournalKind.TOOL_CALL: _on_tool_call,
    JournalKind.TOOL_UPDATE: _on_tool_call,
    JournalKind.PLAN: lambda applier, line: applier.conversation.set_plan(line.get("entries", [])),
    JournalKind.USAGE: _on_usage,
    JournalKind.AGENT_SETTINGS: lambda applier, line: applier.agent_settings.report_settings(line),
    JournalKind.AGENT_COMMANDS: lambda applier, line: applier.agent_settings.report_commands(line),
    JournalKind.AGENT_TITLE: lambda applier, line: applier.agent_settings.report_title(line),
    JournalKind.MCP_SERVERS_LEFT_OUT: _on_servers_left_out,
    JournalKind.SETTING_APPLIED: lambda applier, line: applier.agent_settings.settle(line),
    JournalKind.SETTING_REFUSED: lambda applier, line: applier.agent_settings.settle(line),
    JournalKind.PERMISSION_REQUESTED: _on_permission_requested,
    JournalKind.PERMISSION_RESOLVED: _permission_settled_handler("resolved"),
    JournalKind.PERMISSION_CANCELLED: _permission_settled_handler("cancelled"),
    JournalKind.TURN_COMPLETED: _on_turn_completed,
    JournalKind.TURN_CANCELLED: _turn_ended_handler("cancel"),
    JournalKind.TURN_FAILED: _turn_ended_handler("fail"),
    JournalKind.AGENT_EXITED: _on_agent_exited,
    JournalKind.AGENTCTL_ABANDONED: lambda applier, _: applier.transaction.record_event("session.agentctl_abandoned"),
    JournalKind.WORKSPACE_SNAPSHOT: _on_snapshot,
    UNSTORABLE: _on_unstorable,
}
