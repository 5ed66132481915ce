"""The rows of a session that is rebuilt from its log, as an import does; ``sessions_app.events`` says how."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sessions_app.kernel.rules.log_event import LogEvent, stable_id
from sessions_app.kernel.rules.states import PermissionState, RunState


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
    origin: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] | None = None
    counted: dict[str, Any] = field(default_factory=dict)
    """What the turn alone has used, as far as its end tells it."""
    snapshot_before: str | None = None
    snapshot_after: str | None = None


@dataclass(slots=True)
class PromptRow:
    """A prompt, with its text if the conversation has it."""

    message_id: str
    kind: str
    state: str
    created_at: datetime
    text: str = ""
    version: int = 1
    """Counts the versions of the text."""
    edited_by: str = ""
    """User name of whoever wrote the present version, if it was edited."""


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
    after_seq: int
    """The last event before it."""


PLAN: Final = "plan"
"""Key of the message that shows the agent's plan, and of the plan in it."""
KEY_LIMIT: Final = 128
"""Maximum number of characters of another producer's id."""


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
    snapshot: str = ""
    """The newest snapshot of the workspace."""
    newest_prompt: str = ""
    """Message id of the user's newest prompt in the conversation."""
    budget: dict[str, Any] = field(default_factory=dict)
    """The session's own budget, as the log has it."""

    def run(self, event: LogEvent) -> RunRow:
        """Return the run that an event names, creating it if the log begins in the middle of it."""
        key = stable_id(self.session_id, "run", event.payload.get("run_id"))
        if key not in self.runs:
            message_id = text_value(event.payload, "message_id") or self.newest_prompt
            self.runs[key] = RunRow(key, message_id[:KEY_LIMIT], event.at)
        return self.runs[key]

    def newest_run(self) -> RunRow | None:
        """Return the run that began last."""
        return next(reversed(self.runs.values()), None)


def text_value(values: Mapping[str, Any], name: str) -> str:
    """Return a string from ``values``; empty if it is missing or not a string."""
    value = values.get(name)
    if isinstance(value, str):
        return value
    return ""
