"""Handlers for each kind of journal line, which turn it into events, messages and states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from executors_app.agents import COMMON_FAILURE_MESSAGES, USAGE_LIMIT, FailureMessage
from executors_app.plugins import agent_types
from executors_app.wire import questions
from executors_app.wire.protocol import JournalKind
from executors_app.wire.questions import recorded_answer
from executors_app.wire.questions.schema import parse_stored_question
from executors_app.wire.replayed_texts import text_digest
from sessions_app.agents.services.background_processes import record_processes
from sessions_app.agents.services.mcp_servers import record_left_out
from sessions_app.kernel.bulk import update_row
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import (
    CANCELLED_BY_AGENT,
    PROMPT,
    SESSION,
    WORK,
    PermissionState,
    RequestKind,
    RunState,
    SessionState,
    WorkState,
    turn_origin,
)
from sessions_app.models import MessageDraft, PermissionRequest, Prompt, SessionTransaction
from sessions_app.permissions.events import PermissionRequested, PermissionResolved
from sessions_app.permissions.services import undelivered_content
from sessions_app.recovery import continuity
from sessions_app.recovery.rules import verification
from sessions_app.starts.events import AgentctlAbandoned, AgentExited
from sessions_app.starts.outcomes import record_lost_conversation
from sessions_app.stream.conversation import (
    LEFT_OPEN,
    ConversationUpdate,
    OpenRequest,
    OpenRequests,
    add_permission_message,
    add_question_message,
    changed_details,
    complete_tool_call,
)
from sessions_app.stream.events.journal import JournalSkipped
from sessions_app.stream.ingest.folding import TEXT_KINDS, AgentSettingsUpdate, JournalLine
from sessions_app.stream.ingest.shares import LINE_COST, line_bytes, statements_cost
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.stream.rules.usage import parse_usage
from sessions_app.turns.interruptions import (
    interrupt_turn,
    record_agent_death,
    record_agent_stopped,
    reset_attempts_if_stable,
)
from sessions_app.turns.retries import plan_retry, record_turn_failure
from sessions_app.turns.rules import turn_ends
from sessions_app.waits import models as waits
from sessions_app.workspace.events import AFTER_TURN, WorkspaceChanged
from sessions_app.workspace.services import workspace_notes

UNSTORABLE = "unwritable"
"""Kind of the line that replaces one that cannot be written; ``was`` holds the original kind."""
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "message_id": (str, type(None)),
    "tool_call_id": str,
    "sub_agent": str,
    "permission_id": str,
    "options": list,
    "attachments": list,
    "tool_call": dict,
    "question": dict,
    "usage": dict,
}


WORK_KINDS = TEXT_KINDS | {JournalKind.MESSAGE_SUB_AGENT, JournalKind.TOOL_CALL, JournalKind.TOOL_UPDATE}
"""Lines that show that the agent works."""
LATE_OUTPUT = timedelta(seconds=2)
"""How long after its turn output still counts as part of it."""


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
        self.open_requests = OpenRequests(transaction)
        self.agent_gone = False
        """Whether a line reported that the agent process ended without a request."""

    def sizes_within(self, lines: Sequence[JournalLine], budget: int) -> list[int]:
        """Return the bytes that each of the first lines writes, of as many as fit into ``budget``, but at least one."""
        known: dict[str, Mapping[str, Any]] = {}
        sizes: list[int] = []
        for line in lines:
            size = self._written_bytes(line, known)
            budget -= size + statements_cost(line)
            if budget < 0 and sizes:
                break
            sizes.append(size)
        return sizes

    def _written_bytes(self, line: JournalLine, known: dict[str, Mapping[str, Any]]) -> int:
        """Return the bytes that a line writes; ``known`` has the tool calls as the lines before it leave them."""
        kind = line.get("kind")
        if kind == JournalKind.PERMISSION_REQUESTED:
            return self._requested_bytes(line, known)
        if kind not in TOOL_KINDS:
            return line_bytes(line)
        key = key_of_tool(line)
        before = known.get(key) or self.conversation.known_tool_fields(key)
        known[key] = {**before, **tool_values(line)}
        size = LINE_COST + json_size(known[key])
        return size + sum(max(size, request.size) for request in self._requests_about(key))

    def _requested_bytes(self, line: JournalLine, known: Mapping[str, Mapping[str, Any]]) -> int:
        """Return the bytes of a permission request with what the log adds to its tool call."""
        requested = line.get("tool_call")
        if not isinstance(requested, dict):
            return line_bytes(line)
        key = key_of_tool(requested)
        before = known.get(key) or self.conversation.known_tool_fields(key)
        return LINE_COST + json_size({**line, "tool_call": complete_tool_call(requested, before)})

    def _requests_about(self, key: str) -> Collection[OpenRequest]:
        """Return the open requests that show a tool call: each of them may be written with an update of the call."""
        run = self.transaction.open_turn
        if run is not None and run.state == RunState.WAITING:
            return self.open_requests.of_tool(key)
        return ()

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
        if kind in WORK_KINDS and self.transaction.session.work_state == WorkState.IDLE:
            self._note_work_outside_turn()
        handler(self, line)

    def _note_work_outside_turn(self) -> None:
        """Show a session as working whose agent produces output although no turn is open."""
        transaction, run = self.transaction, self.transaction.newest_run
        is_ready = transaction.session.state == SessionState.WAITING_FOR_INPUT and transaction.session.launch_id
        if not is_ready or run is None or run.ended_at is None:
            return
        # The end of an answer may arrive after the end of its turn.
        if transaction.at - run.ended_at >= LATE_OUTPUT and WORK.allows(transaction.session.work_state, "begin"):
            transaction.move_work("begin")

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
    applier.conversation.begin_turn()
    kind = row.kind if row else str(line.get("prompt_kind", "user"))
    text = row.text if row else str(line.get("text", ""))  # the row's text has no injected history before it
    by_user = row is not None and row.by_id is not None
    transaction.accept_run(
        message_id, origin=turn_origin(kind, by_user=by_user), prompt=row, request_digest=text_digest(text)
    )
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
    turn, execution = applier.transaction.open_turn, applier.transaction.execution
    if turn is not None and turn.message_id == line.get("message_id") and execution is not None:
        applier.transaction.note_turn(turn, snapshot_before=execution.snapshot_announced)
    continuity.mark_history_delivered(applier.transaction, str(line.get("message_id")))


def _text_handler(role: str) -> Callable[[LineApplier, JournalLine], None]:
    def apply_text(applier: LineApplier, line: JournalLine) -> None:
        text = str(line.get("text", ""))
        if line.get("may_be_replayed") and applier.conversation.is_known(role, text):
            return
        applier.conversation.append_text(role, text)

    return apply_text


def _on_sub_agent_text(applier: LineApplier, line: JournalLine) -> None:
    """Store the text of a sub-agent as a status message with its name: it is not the agent's answer."""
    applier.conversation.append_text("status", str(line.get("text", "")), str(line.get("sub_agent") or "Sub-agent"))


def _on_foreign_user_text(applier: LineApplier, line: JournalLine) -> None:
    """Store text that the agent attributes to the user as a status message, apart from the user's own (rule 14)."""
    applier.conversation.finish_text()
    applier.conversation.add_message("status", str(line.get("text", "")), attributed_to="user")


TOOL_KINDS = frozenset({JournalKind.TOOL_CALL.value, JournalKind.TOOL_UPDATE.value})
TOOL_FIELDS = (
    "tool_call_id",
    "title",
    "tool_kind",
    "status",
    "content",
    "locations",
    "raw_input",
    "raw_output",
    "sub_agent",
)


def tool_values(line: JournalLine) -> dict[str, Any]:
    """Return the fields of a tool call that a line sets."""
    return {name: line[name] for name in TOOL_FIELDS if line.get(name) is not None}


def _on_tool_call(applier: LineApplier, line: JournalLine) -> None:
    values = tool_values(line)
    key, run = key_of_tool(line), applier.transaction.open_turn
    if line.get("may_be_replayed") and applier.conversation.is_known_tool(key):
        return
    earlier = applier.conversation.known_tool_fields(key)
    if line["kind"] == JournalKind.TOOL_CALL:
        applier.conversation.call_tool(key, values)
    else:
        applier.conversation.update_tool(key, values)
    if run is not None and run.state == RunState.WAITING:
        changed = changed_details(earlier, values)
        applier.open_requests.update(run, key, applier.conversation.known_tool_fields(key), changed)


def _tool_key_of_request(line: JournalLine) -> str:
    """Return the key of the tool call that a line is about, or an empty string."""
    kind = line.get("kind")
    if kind in TEXT_KINDS:
        return ""
    if kind in TOOL_KINDS:
        return key_of_tool(line)
    requested = line.get("tool_call") if kind == JournalKind.PERMISSION_REQUESTED else None
    if isinstance(requested, dict):
        return key_of_tool(requested)
    return ""


def _on_usage(applier: LineApplier, line: JournalLine) -> None:
    """Merge the agent's usage figures: a figure that it no longer reports keeps its last value."""
    transaction, figures = applier.transaction, parse_usage(line.get("usage", {}))
    transaction.set_fields(usage={**transaction.session.usage, **figures})
    if (turn := transaction.open_turn) is not None:
        transaction.note_turn(turn, usage={**(turn.usage or {}), **figures})


def _on_permission_requested(applier: LineApplier, line: JournalLine) -> None:
    transaction, run = applier.transaction, applier.transaction.open_turn
    options, requested = line.get("options", []), line.get("tool_call", {})
    known = applier.conversation.known_tool_fields(key_of_tool(requested))
    tool_call = complete_tool_call(requested, known)
    question = parse_stored_question(line["question"]) if "question" in line else {}
    kind = RequestKind.QUESTION if question else RequestKind.PERMISSION
    contents = {"tool_call": tool_call, "options": options, "question": question}
    row, made = PermissionRequest.objects.get_or_create(
        id=str(line["permission_id"]),
        defaults={
            **contents,
            "session": transaction.session,
            "run": run,
            "kind": kind,
            "requested_at": transaction.at,
            "tool_key": key_of_tool(tool_call),
            "size": sum(map(json_size, contents.values())),
        },
    )
    if made:
        applier.open_requests.add(row)
        waits.begin_permission_wait(transaction, str(line["permission_id"]), run, kind)
        transaction.record_event(
            PermissionRequested(
                permission_id=str(line["permission_id"]),
                run_id=str(run.id) if run else None,
                tool_call=tool_call,
                options=options,
                question=question or None,
            )
        )


def _permission_settled_handler(state: str) -> Callable[[LineApplier, JournalLine], None]:
    """Return the handler that settles a permission request as ``state`` and resumes its turn after the last one."""

    def settle(applier: LineApplier, line: JournalLine) -> None:
        transaction = applier.transaction
        request = transaction.session.permissions.filter(
            id=line.get("permission_id"), state=PermissionState.PENDING
        ).first()
        if request is None:
            return
        request.state, request.settled_at = state, transaction.at
        request.option_id = str(line.get("option_id") or "")[:128]
        request.reason = str(line.get("reason") or "")[:64]
        if request.option_id == questions.ACCEPT:
            request.answer = recorded_answer(request.question, undelivered_content(request))
        request.sealed_answer = {}
        request.save(update_fields=["state", "settled_at", "option_id", "reason", "answer", "sealed_answer"])
        applier.open_requests.remove(request)
        is_question = request.kind == RequestKind.QUESTION
        transaction.record_event(
            PermissionResolved(
                permission_id=request.id,
                state=state,
                option_id=request.option_id,
                reason=str(line.get("reason", "")),
                status=str(request.question_status) if is_question else None,
                answer=request.answer if is_question else None,
            )
        )
        if is_question:
            add_question_message(applier.conversation, request)
        elif state == "resolved":
            add_permission_message(applier.conversation, request)
        waits.revoke_tokens(transaction, str(line.get("reason") or state), wait_id=request.id)
        if (
            transaction.open_turn is not None
            and request.reason not in AGENT_ENDED_REASONS
            and not transaction.session.permissions.filter(state=PermissionState.PENDING).exists()
        ):
            transaction.move_run("resume", reason=request.reason or state)

    return settle


AGENT_ENDED_REASONS: Final = frozenset({"agent_gone", "stopped"})
"""Reasons for which agentctl closes a request just before it reports the agent's end, which ends the turn too."""


EMPTY_TURN_REASONS: dict[str, str] = {
    "turn_refused": "The agent refused this request. Rephrase it, or start a new session.",
    "no_output": "The agent ended its turn, and no output or action of it has arrived since. If none follows, send the "
    "prompt again. If this happens again, the agent may have lost its conversation or its model: check its log.",
}
"""Codes and messages of turns that ended normally although the agent did nothing."""


NOTHING_SHOWN: Final = "It has shown no output or action in this turn."
"""Added to the reason that an agent gives for the early end of such a turn."""


CODES_WITHOUT_PROOF = frozenset({*EMPTY_TURN_REASONS, USAGE_LIMIT})
"""Codes of failed turns that say nothing about whether the agent has its conversation."""


def _on_turn_completed(applier: LineApplier, line: JournalLine) -> None:
    """End a turn; one without work counts as failed, and proves nothing of the agent's memory."""
    if "stop_reason" in line:
        line = {**line, "stop_reason": turn_ends.recorded_stop_reason(line["stop_reason"])}
    failure = _failure_of(applier, line)
    if failure is not None:
        code, message = failure
        if code == "turn_refused":
            continuity.resend_history(applier.transaction, str(line.get("message_id")))
        _turn_ended_handler("fail")(applier, {**line, "code": code, "message": message})
        return
    turn = applier.transaction.open_turn
    if turn is not None and turn.message_id.startswith(verification.MEMORY_CHECK_PREFIX):
        continuity.settle_memory_check(applier.transaction, applier.conversation.answer_to(turn))
    _turn_ended_handler("complete")(applier, line)
    if sentence := turn_ends.early_stop_sentence(str(line.get("stop_reason") or "")):
        applier.conversation.add_message("status", sentence, level="warning")


def _on_turn_cancelled(applier: LineApplier, line: JournalLine) -> None:
    """End a cancelled turn, and say so if nobody asked the agent to cancel it."""
    if line.get("by_agent") is not True:
        _turn_ended_handler("cancel")(applier, line)
        return
    _turn_ended_handler("cancel")(applier, {**line, "stop_reason": CANCELLED_BY_AGENT})
    applier.conversation.add_message("status", turn_ends.CANCELLED_BY_AGENT_SENTENCE, level="warning")


def _failure_of(applier: LineApplier, line: JournalLine) -> tuple[str, str] | None:
    """Return code and message of a turn that has ended normally although the agent did nothing; None for any other."""
    if line.get("stop_reason") == "refusal":
        return "turn_refused", EMPTY_TURN_REASONS["turn_refused"]
    if line.get("output") is False:
        row = applier.find_prompt(line)
        if row is not None and turn_ends.is_agent_command(row.text):
            return None
        early = turn_ends.early_stop_sentence(str(line.get("stop_reason") or ""))
        return "no_output", f"{early} {NOTHING_SHOWN}" if early else EMPTY_TURN_REASONS["no_output"]
    text = line.get("only_text")
    if not isinstance(text, str):
        return None
    failure = turn_ends.find_failure_message(text, _failure_messages())
    if failure:
        return (failure.code, text.strip())
    return None


@cache
def _failure_messages() -> Sequence[FailureMessage]:
    of_types = [failure for kind in agent_types().values() for failure in kind.failure_messages]
    return [*of_types, *COMMON_FAILURE_MESSAGES]


def _agent_stop_reason(line: JournalLine) -> str | None:
    """Return why the agent ended its turn, as it said; None if it did not end it itself."""
    reason = line.get("agent_stop_reason", line.get("stop_reason"))
    if reason is None:
        return None
    return str(reason)[:64]


def _text(value: object) -> str | None:
    """Return a value of a line as text; None if the line lacks it."""
    if value is None:
        return None
    return str(value)


def _turn_ended_handler(move: str) -> Callable[[LineApplier, JournalLine], None]:
    """Return the handler that ends the open turn with ``move``: *complete*, *cancel* or *fail*."""

    def end(applier: LineApplier, line: JournalLine) -> None:
        transaction = applier.transaction
        tools = applier.conversation.unfinished_tools() if move == "fail" else []
        applier.conversation.finish(LEFT_OPEN if move == "complete" else "cancelled")
        row, run = applier.find_prompt(line), transaction.open_turn
        if row is not None and PROMPT.allows(row.state, "finish"):
            transaction.move_prompt(row, "finish")
        if run is None:
            return
        failure = {}
        if move == "fail":
            failure = {"error_code": _text(line.get("code")), "error_message": _text(line.get("message"))}
        if move == "complete":
            transaction.note_turn(run, answer_digest=applier.conversation.answer_digest(run))
        reason = str(line.get("code") or line.get("stop_reason") or "")[:64]
        transaction.move_run(move, reason=reason, stop_reason=_agent_stop_reason(line), **failure)
        if move != "cancel" and line.get("code") not in CODES_WITHOUT_PROOF:
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
    interrupt_turn(applier.transaction, "agent_exited", applier.conversation, is_present=is_present)
    if is_present:
        (record_agent_stopped if line.get("expected") else record_agent_death)(applier.transaction)
    applier.transaction.record_event(AgentExited(exit_code=line.get("exit_code"), expected=bool(line.get("expected"))))
    applier.agent_gone = applier.agent_gone or not line.get("expected")


def _on_unstorable(applier: LineApplier, line: JournalLine) -> None:
    applier.transaction.record_event(
        JournalSkipped(reason=UNSTORABLE, count=1, seq=line["seq"], kind=str(line["was"])[:64])
    )


def _on_snapshot(applier: LineApplier, line: JournalLine) -> None:
    """Record a new snapshot of the working tree, which ``WorkspaceSync`` then transfers to the archive."""
    _announce_snapshot(applier.transaction, str(line.get("commit", "")))
    turn = applier.transaction.newest_run
    if turn is not None and turn.ended_at is not None and line.get("reason") == AFTER_TURN:
        applier.transaction.note_turn(turn, snapshot_after=str(line.get("commit", ""))[:64])
    about = workspace_notes.record_snapshot(applier.transaction, line)
    applier.transaction.record_event(
        WorkspaceChanged(
            reason=str(line.get("reason", "")),
            commit=str(line.get("commit", "")),
            dirty=bool(line.get("dirty")),
            branch=about["branch"],
            head=about["head"],
            left_out=about["left_out"],
            left_out_count=about["left_out_count"],
            ignored_count=about["ignored_count"],
        )
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
    JournalKind.MESSAGE_SUB_AGENT: _on_sub_agent_text,
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
    JournalKind.TURN_CANCELLED: _on_turn_cancelled,
    JournalKind.TURN_FAILED: _turn_ended_handler("fail"),
    JournalKind.AGENT_EXITED: _on_agent_exited,
    JournalKind.AGENTCTL_ABANDONED: lambda applier, _: applier.transaction.record_event(AgentctlAbandoned()),
    JournalKind.AGENT_PROCESSES: lambda applier, line: record_processes(applier.transaction, line),
    JournalKind.WORKSPACE_SNAPSHOT: _on_snapshot,
    JournalKind.LOG: lambda applier, line: workspace_notes.record_warning(applier.transaction, line),
    UNSTORABLE: _on_unstorable,
}
