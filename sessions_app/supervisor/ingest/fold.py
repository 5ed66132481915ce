"""From a journal line to the session's log: one small function for each kind of line (design 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from executors_app.agentctl.protocol import Kind
from sessions_app.domain import memory_check
from sessions_app.domain.states import PROMPT, SESSION, WORK, RunState
from sessions_app.domain.usage import figures_of
from sessions_app.models import Draft, PermissionRequest, Prompt, waits
from sessions_app.models.bulk import update
from sessions_app.services.permissions import name_of
from sessions_app.services.tokens import of_permissions
from sessions_app.supervisor.ingest import permission_requests
from sessions_app.supervisor.ingest.conversation import Conversation
from sessions_app.supervisor.ingest.interruptions import agent_died, agent_left, forgive_if_steady, interrupt
from sessions_app.supervisor.start import receipts
from sessions_app.supervisor.start.outcomes import lose_conversation
from sessions_app.supervisor.turns.retries import plan_retry, say_failure

Line = Mapping[str, Any]
TITLE_LIMIT = 500
"""Characters of an agent's words that an answered permission repeats."""
UNWRITABLE = "unwritable"
"""Kind of what stands for a line that could not be written; ``was`` is its own."""
FIELD_TYPES: dict[str, Any] = {
    "text": str,
    "message_id": str | None,
    "tool_call_id": str,
    "permission_id": str,
    "options": list,
    "tool_call": dict,
    "usage": dict,
}


class Fold:
    """Applies a batch of journal lines, in order, to the draft of one session."""

    def __init__(self, draft: Draft, lines: Sequence[Line] = ()):
        self.draft = draft
        self.conversation = Conversation(draft, {key for line in lines if (key := _tool_spoken_of(line))})
        self.agent_gone = False
        """A line told that the agent process ended without being asked to."""

    def apply(self, line: Line) -> None:
        """Apply one line; an unknown kind changes nothing. TypeError and KeyError where it lacks what it must tell."""
        handler = HANDLERS.get(str(line.get("kind")))
        if handler is None:
            return
        _check(line)
        self.draft.at = datetime.fromtimestamp(float(line["ts"]), UTC)
        self.draft.heard()
        if line["kind"] not in (Kind.MESSAGE_AGENT, Kind.MESSAGE_THOUGHT):
            self.conversation.pause()
        handler(self, line)

    def prompt(self, line: Line) -> Prompt | None:
        """The ledger row that a line names."""
        return self.draft.session.prompts.filter(message_id=line.get("message_id")).first()


def _check(line: Line) -> None:
    """What is wrong must not come into the log: its readers rely on it."""
    for name, wanted in FIELD_TYPES.items():
        if name in line and not isinstance(line[name], wanted):
            raise TypeError(f"{name} of a {line['kind']} is {type(line[name]).__name__}")
    if not all("option_id" in option for option in line.get("options", ())):
        raise KeyError("option_id")


def _accepted(fold: Fold, line: Line) -> None:
    """The prompt is the agent's: now, and only now, its text enters the conversation (rule 14)."""
    draft, message_id = fold.draft, str(line["message_id"])
    row = fold.prompt(line)
    fold.conversation.finish()
    draft.accept_run(message_id)
    kind = row.kind if row else str(line.get("prompt_kind", "user"))
    text = row.text if row else str(line.get("text", ""))  # ours has no injected history before it
    fold.conversation.add("user", text, key=message_id, kind=kind)
    if row is not None and PROMPT.allows(row.state, "accept"):
        draft.move_prompt(row, "accept", journal_epoch=line["epoch"])
    _move(draft, "turn_started", work="begin")


def _delivered(fold: Fold, line: Line) -> None:
    row = fold.prompt(line)
    if row is not None and PROMPT.allows(row.state, "deliver"):
        fold.draft.move_prompt(row, "deliver")
    receipts.delivered(fold.draft, str(line.get("message_id")))


def _text(role: str) -> Callable[[Fold, Line], None]:
    def fold_text(fold: Fold, line: Line) -> None:
        fold.conversation.text(role, str(line.get("text", "")))

    return fold_text


def _agents_user_text(fold: Fold, line: Line) -> None:
    """Text that the agent attributes to the user and that is not ours is kept apart (rule 14)."""
    fold.conversation.finish_text()
    fold.conversation.add("status", str(line.get("text", "")), attributed_to="user")


TOOL_KINDS = (Kind.TOOL_CALL, Kind.TOOL_UPDATE)
TOOL_FIELDS = ("tool_call_id", "title", "tool_kind", "status", "content", "locations", "raw_input", "raw_output")


def _tool(fold: Fold, line: Line) -> None:
    values = {name: line[name] for name in TOOL_FIELDS if name in line}
    key, run = _tool_key(line), fold.draft.open_turn
    fold.conversation.tool(key, values)
    if run is not None and run.state == RunState.WAITING:
        permission_requests.tell_more(fold.draft, key, fold.conversation.known_of_tool(key))


def _tool_spoken_of(line: Line) -> str:
    """The key of the tool call that a line is about; empty: of none."""
    if line.get("kind") in TOOL_KINDS:
        return _tool_key(line)
    asked = line.get("tool_call") if line.get("kind") == Kind.PERMISSION_REQUESTED else None
    return _tool_key(asked) if isinstance(asked, dict) else ""


def _tool_key(line: Line) -> str:
    return str(line.get("tool_call_id", ""))[:200]


def _plan(fold: Fold, line: Line) -> None:
    fold.conversation.plan(line.get("entries", []))


def _usage(fold: Fold, line: Line) -> None:
    """The agent's own figures; what it tells no more stays as it was told last."""
    draft = fold.draft
    draft.set(usage={**draft.session.usage, **figures_of(line.get("usage", {}))})


def _permission_requested(fold: Fold, line: Line) -> None:
    draft, run = fold.draft, fold.draft.open_turn
    options, asked = line.get("options", []), line.get("tool_call", {})
    known = fold.conversation.known_of_tool(_tool_key(asked))
    tool_call = permission_requests.with_known(asked, known)
    _, made = PermissionRequest.objects.get_or_create(
        id=str(line["permission_id"]),
        defaults={
            "session": draft.session,
            "run": run,
            "tool_call": tool_call,
            "options": options,
            "requested_at": draft.at,
        },
    )
    if made:
        waits.begin_permission(draft, str(line["permission_id"]), run)
        draft.say(
            "session.permission.requested",
            permission_id=str(line["permission_id"]),
            run_id=str(run.id) if run else None,
            tool_call=tool_call,
            options=options,
        )


def _permission_settled(state: str) -> Callable[[Fold, Line], None]:
    def settle(fold: Fold, line: Line) -> None:
        draft = fold.draft
        asked = draft.session.permissions.filter(id=line.get("permission_id"), state="pending").first()
        if asked is None:
            return
        asked.state, asked.settled_at = state, draft.at
        asked.option_id = str(line.get("option_id") or "")[:128]
        asked.save(update_fields=["state", "settled_at", "option_id"])
        draft.say(
            "session.permission.resolved",
            permission_id=asked.id,
            state=state,
            option_id=asked.option_id,
            reason=str(line.get("reason", "")),
        )
        if state == "resolved":
            _keep_answer(fold, asked)
        waits.revoke(draft, str(line.get("reason") or state), wait_id=asked.id)
        if draft.open_turn is not None and not draft.session.permissions.filter(state="pending").exists():
            draft.move_run("resume")

    return settle


def _keep_answer(fold: Fold, asked: PermissionRequest) -> None:
    """Leave in the conversation what was asked, what was chosen and who chose it."""
    token = of_permissions([asked]).get(asked.id)
    who = token.consumed_by.get_username() if token and token.consumed_by else ""
    title = str(asked.tool_call.get("title") or "Do something")[:TITLE_LIMIT]
    option = name_of(asked, asked.option_id)[:TITLE_LIMIT]
    told = {"permission_id": asked.id, "title": title, "option_id": asked.option_id, "option": option, "by": who}
    fold.conversation.finish_text()
    fold.conversation.add("status", f"Permission answered: {title} – {option}", permission=told)


NO_WORK: dict[str, str] = {
    "turn_refused": "The agent refused this request. Rephrase it, or start a new session.",
    "no_output": "The agent ended its turn without saying or doing anything. Send the prompt again. If that happens "
    "once more, the agent may have lost its conversation or its model: look at its log.",
}
"""Turns that ended as if all were well, and in which nothing was done: the code of each, and what is told of it."""


def _completed(fold: Fold, line: Line) -> None:
    """A refusal, or a turn without output, is no completed work, and proves nothing of the agent's memory."""
    code = "turn_refused" if line.get("stop_reason") == "refusal" else ""
    if not code and line.get("output") is False:  # an older agentctl does not tell
        code = "no_output"
    if code == "turn_refused":
        receipts.tell_again(fold.draft, str(line.get("message_id")))
    if code:
        _turn_ended("fail")(fold, {**line, "code": code, "message": NO_WORK[code]})
        return
    if str(line.get("message_id")).startswith(memory_check.PREFIX):
        answer = fold.conversation.said_since(str(line["message_id"]))
        receipts.answered(fold.draft, answer)
    _turn_ended("complete")(fold, line)


def _turn_ended(move: str) -> Callable[[Fold, Line], None]:
    def end(fold: Fold, line: Line) -> None:
        draft = fold.draft
        tools = fold.conversation.unfinished_tools() if move == "fail" else []
        fold.conversation.finish(tool_status="" if move == "complete" else "cancelled")
        row, run = fold.prompt(line), draft.open_turn
        if row is not None and PROMPT.allows(row.state, "finish"):
            draft.move_prompt(row, "finish")
        if run is None:
            return
        failure = {"error_code": line.get("code"), "error_message": line.get("message")} if move == "fail" else {}
        draft.move_run(move, reason=str(line.get("code") or line.get("stop_reason") or "")[:64], **failure)
        if move != "cancel" and line.get("code") not in NO_WORK:
            receipts.settle(draft, failed=move == "fail")
        talk = fold.conversation
        retry = plan_retry(draft, run, row, line, talk=talk, tools=tools) if move == "fail" else None
        _move(draft, "turn_ended", work="begin" if retry else "rest")
        if move == "complete" and not run.message_id.startswith(memory_check.PREFIX):
            # The answer to our own question does not show that the agent survives its work: an agent that dies in
            # each turn of its user's answers it after each restart, and would never be given up.
            draft.set(start_attempts=0, next_restart_at=None)
        if move == "fail":
            say_failure(draft, fold.conversation, line, retry)
            lose_conversation(draft, str(line.get("code") or ""), str(line.get("message") or ""))

    return end


def _exited(fold: Fold, line: Line) -> None:
    """The agent process is gone: what it left unfinished is said, and nobody takes it for running."""
    is_present = line.get("launch_id") in (None, fold.draft.session.launch_id)
    if is_present:  # an earlier agent's end says nothing of the one that is up
        forgive_if_steady(fold.draft, until=fold.draft.at)
    interrupt(fold.draft, "agent_exited", fold.conversation)
    if is_present:
        (agent_left if line.get("expected") else agent_died)(fold.draft)
    fold.draft.say("session.agent_exited", exit_code=line.get("exit_code"), expected=bool(line.get("expected")))
    fold.agent_gone = fold.agent_gone or not line.get("expected")


def _abandoned(fold: Fold, line: Line) -> None:
    fold.draft.say("session.agentctl_abandoned")


def _unwritable(fold: Fold, line: Line) -> None:
    fold.draft.say("session.journal_skipped", reason=UNWRITABLE, count=1, seq=line["seq"], kind=str(line["was"])[:64])


def _snapshot(fold: Fold, line: Line) -> None:
    """The working tree is another than when it was kept last; it is due in the archive (``WorkspaceSync``)."""
    _announce_snapshot(fold.draft, str(line.get("commit", "")))
    fold.draft.say(
        "session.workspace.changed",
        reason=str(line.get("reason", "")),
        commit=str(line.get("commit", "")),
        dirty=bool(line.get("dirty")),
    )


def _announce_snapshot(draft: Draft, commit: str) -> None:
    # In the transaction of the line: after a kill the columns still tell that this snapshot has not arrived.
    execution = draft.execution
    if execution is None or not commit:
        return
    was_due = execution.snapshot_announced != execution.snapshot_arrived
    execution.snapshot_announced = commit[:64]  # hostile: no longer than the column
    if execution.snapshot_announced == execution.snapshot_arrived:
        execution.snapshot_due_since = None
    elif not was_due:
        execution.snapshot_due_since = draft.at
    update(execution, ("snapshot_announced", "snapshot_due_since"))


def _move(draft: Draft, move: str, *, work: str) -> None:
    """Move the session and its work where it may move; a session that ended for good only keeps its log."""
    if SESSION.allows(draft.session.state, move):
        draft.move(move)
        if WORK.allows(draft.session.work_state, work):  # else its task is done
            draft.work(work)


HANDLERS: dict[str, Callable[[Fold, Line], None]] = {
    Kind.PROMPT_ACCEPTED: _accepted,
    Kind.PROMPT_DELIVERED: _delivered,
    Kind.MESSAGE_USER: _agents_user_text,
    Kind.MESSAGE_AGENT: _text("agent"),
    Kind.MESSAGE_THOUGHT: _text("thought"),
    Kind.TOOL_CALL: _tool,
    Kind.TOOL_UPDATE: _tool,
    Kind.PLAN: _plan,
    Kind.USAGE: _usage,
    Kind.PERMISSION_REQUESTED: _permission_requested,
    Kind.PERMISSION_RESOLVED: _permission_settled("resolved"),
    Kind.PERMISSION_CANCELLED: _permission_settled("cancelled"),
    Kind.TURN_COMPLETED: _completed,
    Kind.TURN_CANCELLED: _turn_ended("cancel"),
    Kind.TURN_FAILED: _turn_ended("fail"),
    Kind.AGENT_EXITED: _exited,
    Kind.AGENTCTL_ABANDONED: _abandoned,
    Kind.WORKSPACE_SNAPSHOT: _snapshot,
    UNWRITABLE: _unwritable,
}
