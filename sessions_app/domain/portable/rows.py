"""The rows of a session as a log tells of them, before there is a database to put them into."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sessions_app.domain.states import RunState


@dataclass(slots=True)
class MessageRow:
    """A message of the conversation; its text in the pieces in which it was said."""

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
    """A turn."""

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
    """A line of the ledger; its text as the conversation shows it, if it came so far."""

    message_id: str
    kind: str
    state: str
    created_at: datetime
    text: str = ""


@dataclass(slots=True)
class PermissionRow:
    """What the agent asked before it acted."""

    id: str
    run_id: uuid.UUID | None
    tool_call: dict[str, Any]
    options: list[dict[str, Any]]
    requested_at: datetime
    state: str = "pending"
    option_id: str = ""
    settled_at: datetime | None = None


@dataclass(slots=True)
class ReceiptRow:
    """How a resume ended, without its evidence."""

    id: uuid.UUID
    kind: str
    verified: str
    strategy: str
    reason: str
    created_at: datetime
