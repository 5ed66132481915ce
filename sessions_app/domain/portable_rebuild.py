"""Rebuild the rows of a session from the events of its log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from executors_app.agentctl.questions.schema import parse_stored_question
from sessions_app.domain.portable_lines import MESSAGE_ADDED, ROLES, LogEvent, stable_id
from sessions_app.domain.states import OPEN_RUN_STATES, PermissionState, PromptState, RunState, SessionState, WorkState


@dataclass(slots=True)
class MessageRow:
    """A message of the conversation, with its text in the pieces in which it arrived."""

    id: uuid.UUID
    seq: int
    updated_seq: int
    role: str
    key: str
    payload: dict[str, Any]
    complete: bool
    created_at: datetime
    pieces: list[str]


@dataclass(slots=True)
class RunRow:
    """A run."""

    id: uuid.UUID
    message_id: str
    started_at: datetime
    state: str = RunState.RUNNING
    waited: bool = False
    wait_kind: str = ""
    wait_id: str = ""
    since_seq: int = 0
    reason: str = ""
    ended_at: datetime | None = None


@dataclass(slots=True)
class PromptRow:
    """A prompt, with its text if the conversation has it."""

    message_id: str
    kind: str
    state: str
    created_at: datetime
    text: str = ""


@dataclass(slots=True)
class PermissionRow:
    """A permission request."""

    id: str
    run_id: uuid.UUID | None
    tool_call: dict[str, Any]
    options: list[dict[str, Any]]
    requested_at: datetime
    state: str = PermissionState.PENDING
    option_id: str = ""
    settled_at: datetime | None = None
    question: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(slots=True)
class ReceiptRow:
    """A continuity receipt, without its evidence."""

    id: uuid.UUID
    kind: str
    verified: str
    strategy: str
    reason: str
    created_at: datetime


PLAN: Final = "plan"
"""Key of the message that shows the agent's plan, and of the plan in it."""
KEY_LIMIT: Final = 128
"""Maximum number of characters of another producer's id."""
_ENDS: Final = {str(state): state for state in RunState if state not in OPEN_RUN_STATES}
_PERMISSION_STATES: Final = (PermissionState.RESOLVED, PermissionState.CANCELLED)


@dataclass
class SessionRebuild:
    """The rows of one session, built up event by event in the order of the log."""

    session_id: uuid.UUID
    messages: dict[uuid.UUID, MessageRow] = field(default_factory=dict)
    runs: dict[uuid.UUID, RunRow] = field(default_factory=dict)
    prompts: dict[str, PromptRow] = field(default_factory=dict)
    permissions: dict[str, PermissionRow] = field(default_factory=dict)
    receipts: dict[uuid.UUID, ReceiptRow] = field(default_factory=dict)
    state: str = ""
    error_code: str = ""
    error_message: str = ""
    work_state: str = ""
    told_status: str = ""
    expected: str = ""
    """Message id of the prompt whose text is expected as the user's next message."""
    asked: str = ""
    """Message id of the user's newest prompt in the conversation."""

    def apply(self, event: LogEvent) -> LogEvent:
        """Apply one event; return it with our ids in place of foreign ones. Raises ValueError if it is inconsistent."""
        event = _with_our_ids(self.session_id, event)
        handler = EVENT_HANDLERS.get(event.name)
        if handler is None and event.name.startswith("session.prompt."):
            handler = _prompt
        if handler is not None:
            handler(self, event)
        return event

    def run(self, event: LogEvent) -> RunRow:
        """Return the run that an event names, creating it if the log begins in the middle of it."""
        key = stable_id(self.session_id, "run", event.payload.get("run_id"))
        if key not in self.runs:
            message_id = text_value(event.payload, "message_id") or self.asked
            self.runs[key] = RunRow(key, message_id[:KEY_LIMIT], event.at)
        return self.runs[key]


def text_value(values: Mapping[str, Any], name: str) -> str:
    """Return a string from ``values``; empty if it is missing or not a string."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _with_our_ids(session_id: uuid.UUID, event: LogEvent) -> LogEvent:
    """Replace ids that are not UUIDs, from other producers, by UUIDs that are the same each time."""
    told = event.payload
    ours: dict[str, str] = {}
    if event.name.startswith("session.message."):
        named = told.get("message_id", f"line {event.seq}")
        ours["message_id"] = str(stable_id(session_id, "message", named))
    if told.get("run_id") is not None:
        ours["run_id"] = str(stable_id(session_id, "run", told["run_id"]))
    if event.name == "session.receipt":
        ours["receipt_id"] = str(stable_id(session_id, "receipt", told.get("receipt_id")))
    if all(told.get(name) == value for name, value in ours.items()):
        return event
    return LogEvent(event.seq, event.at, event.name, {**told, **ours}, event.once)


def _added(rows: SessionRebuild, event: LogEvent) -> None:
    told = event.payload
    payload, role, text = told.get("payload", {}), told.get("role"), told.get("text", "")
    if role not in ROLES or not isinstance(payload, dict) or not isinstance(text, str):
        raise ValueError("no message")
    key = uuid.UUID(told["message_id"])
    if key in rows.messages:
        raise ValueError("a message that exists already")
    if role == "user":
        # A user's message has no prompt id. The run that has just started names the prompt that it belongs to.
        name = rows.asked = rows.expected or str(key)
        rows.expected = ""
        if name in rows.prompts:
            rows.prompts[name].text = text
    else:
        name = PLAN if role == "status" and PLAN in payload else text_value(payload, "tool_call_id")[:200]
    complete = told.get("complete") is not False
    rows.messages[key] = MessageRow(key, event.seq, event.seq, role, name, dict(payload), complete, event.at, [text])


def _updated(rows: SessionRebuild, event: LogEvent) -> None:
    told = event.payload
    message = rows.messages.get(uuid.UUID(told["message_id"]))
    if message is None:
        raise ValueError("a change to an unknown message")
    if isinstance(told.get("replace"), str):
        message.pieces = [told["replace"]]
    if isinstance(told.get("append"), str):
        message.pieces.append(told["append"])
    if isinstance(told.get("payload"), dict):
        message.payload = dict(told["payload"])
    if isinstance(told.get("complete"), bool):
        message.complete = told["complete"]
    message.updated_seq = event.seq


def _run_started(rows: SessionRebuild, event: LogEvent) -> None:
    rows.expected = text_value(event.payload, "message_id")[:KEY_LIMIT]
    rows.run(event)


def _run_waiting(rows: SessionRebuild, event: LogEvent) -> None:
    run = rows.run(event)
    run.state, run.waited, run.since_seq = RunState.WAITING, True, event.seq
    run.wait_kind, run.wait_id = (
        text_value(event.payload, "wait_kind")[:16],
        text_value(event.payload, "wait_id")[:KEY_LIMIT],
    )


def _run_resumed(rows: SessionRebuild, event: LogEvent) -> None:
    rows.run(event).state = RunState.RUNNING


def _run_ended(rows: SessionRebuild, event: LogEvent) -> None:
    run = rows.run(event)
    run.waited = run.state == RunState.WAITING
    run.state, run.ended_at = _ENDS[event.name.rpartition(".")[2]], event.at
    run.reason = text_value(event.payload, "reason")[:64]


def _prompt(rows: SessionRebuild, event: LogEvent) -> None:
    state, message_id = event.name.rpartition(".")[2], text_value(event.payload, "message_id")
    if state not in set(PromptState) or not message_id or len(message_id) > KEY_LIMIT:
        raise ValueError("no prompt")
    kind = text_value(event.payload, "kind")[:10] or "user"
    rows.prompts.setdefault(message_id, PromptRow(message_id, kind, state, event.at)).state = state


def _permission_requested(rows: SessionRebuild, event: LogEvent) -> None:
    told = event.payload
    key, options = text_value(told, "permission_id"), told.get("options")
    tool_call = told.get("tool_call")
    if not 0 < len(key) <= 64 or not isinstance(options, list) or not all(isinstance(one, dict) for one in options):
        raise ValueError("no permission")
    run_id = uuid.UUID(told["run_id"]) if told.get("run_id") is not None else None
    known = run_id if run_id in rows.runs else None
    rows.permissions[key] = PermissionRow(
        key,
        known,
        dict(tool_call) if isinstance(tool_call, dict) else {},
        options,
        event.at,
        question=parse_stored_question(told["question"]) if isinstance(told.get("question"), dict) else {},
    )


def _permission_settled(rows: SessionRebuild, event: LogEvent) -> None:
    asked = rows.permissions.get(text_value(event.payload, "permission_id"))
    if asked is None:
        raise ValueError("the end of an unknown permission request")
    state = text_value(event.payload, "state")
    expired = event.name.endswith(".expired")
    asked.state = (
        PermissionState.EXPIRED if expired else state if state in _PERMISSION_STATES else PermissionState.RESOLVED
    )
    asked.option_id, asked.settled_at = text_value(event.payload, "option_id")[:128], event.at
    asked.reason, answer = text_value(event.payload, "reason")[:64], event.payload.get("answer")
    asked.answer = answer if isinstance(answer, dict) else {}


def _receipt(rows: SessionRebuild, event: LogEvent) -> None:
    told, key = event.payload, uuid.UUID(event.payload["receipt_id"])
    kind, verified = text_value(told, "kind")[:16], text_value(told, "verified")[:16]
    if key in rows.receipts:
        # A receipt is recorded again when it is settled; only its proof has changed.
        rows.receipts[key].verified = verified
    else:
        strategy, reason = text_value(told, "strategy")[:16], text_value(told, "reason")[:64]
        rows.receipts[key] = ReceiptRow(key, kind, verified, strategy, reason, event.at)


def _state_changed(rows: SessionRebuild, event: LogEvent) -> None:
    if text_value(event.payload, "to") in set(SessionState):
        rows.state = event.payload["to"]
        rows.error_code = text_value(event.payload, "error_code")[:64]
        rows.error_message = text_value(event.payload, "error_message")


def _work_changed(rows: SessionRebuild, event: LogEvent) -> None:
    if text_value(event.payload, "to") in set(WorkState):
        rows.work_state = event.payload["to"]


def _status(rows: SessionRebuild, event: LogEvent) -> None:
    rows.told_status = text_value(event.payload, "status")[:20]


EVENT_HANDLERS: Final[dict[str, Callable[[SessionRebuild, LogEvent], None]]] = {
    MESSAGE_ADDED: _added,
    "session.message.updated": _updated,
    "session.run.started": _run_started,
    "session.run.waiting": _run_waiting,
    "session.run.resumed": _run_resumed,
    **{f"session.run.{end}": _run_ended for end in _ENDS},
    "session.permission.requested": _permission_requested,
    "session.permission.resolved": _permission_settled,
    "session.permission.expired": _permission_settled,
    "session.receipt": _receipt,
    "session.state_changed": _state_changed,
    "session.work_state_changed": _work_changed,
    "session.status_derived": _status,
}
