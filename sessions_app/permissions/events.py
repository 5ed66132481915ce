"""Requests of an agent: permissions and questions."""

from __future__ import annotations

import uuid
from typing import Any, Final

from pydantic import Field

from executors_app.wire.questions.schema import parse_stored_question
from sessions_app.attention.rules import notices
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.events.base import Event, Inbox
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import PermissionRow, SessionRebuild, text_value
from sessions_app.kernel.rules.states import PermissionState
from sessions_app.sessions.rules.situation_facts import Label

_END_STATES: Final = (PermissionState.RESOLVED, PermissionState.CANCELLED)


class PermissionEvent(Event):
    """Something happened to a request."""

    permission_id: str


class PermissionRequested(
    PermissionEvent,
    name="session.permission.requested",
    recorded_by="ingest",
    raises=(AttentionKind.PERMISSION, AttentionKind.QUESTION),
):
    """The agent asks for a permission, or a question."""

    run_id: str | None
    tool_call: dict[str, Any]
    options: list[Any]
    question: dict[str, Any] | None = Field(
        default=None,
        description="for a question, `mode`, `message`, `schema` and `order`, or `url` and `elicitation_id`",
    )

    def update_inbox(self, inbox: Inbox) -> None:
        """Raise an item about the request."""
        inbox.raise_item(notices.request_notice(self.permission_id, self.tool_call, self.question))

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Add the open request."""
        values = line.payload
        key, options, tool_call = text_value(values, "permission_id"), values.get("options"), values.get("tool_call")
        if not 0 < len(key) <= 64 or not isinstance(options, list):
            raise ValueError("no permission")
        if not all(isinstance(option, dict) for option in options):
            raise ValueError("no permission")
        run_id = None
        if values.get("run_id") is not None:
            run_id = uuid.UUID(values["run_id"])
        if run_id not in rows.runs:
            run_id = None
        if not isinstance(tool_call, dict):
            tool_call = {}
        question = values.get("question")
        if isinstance(question, dict):
            question = parse_stored_question(question)
        else:
            question = {}
        rows.permissions[key] = PermissionRow(key, run_id, dict(tool_call), options, line.at, question=question)


class PermissionSettled(PermissionEvent):
    """A request is no longer open."""

    @classmethod
    def end_state(cls, state: str) -> str:
        """Return the state of the request; ``state`` is what the event says."""
        if state in _END_STATES:
            return state
        return PermissionState.RESOLVED

    def item_key(self, *, is_question: bool) -> str:
        """Return the key of the attention item about the request."""
        if is_question:
            return f"{AttentionKind.QUESTION}:{self.permission_id}"
        return f"{AttentionKind.PERMISSION}:{self.permission_id}"

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Settle the request."""
        values = line.payload
        request = rows.permissions.get(text_value(values, "permission_id"))
        if request is None:
            raise ValueError("the end of an unknown permission request")
        request.state = cls.end_state(text_value(values, "state"))
        request.option_id, request.settled_at = text_value(values, "option_id")[:128], line.at
        request.reason = text_value(values, "reason")[:64]
        answer = values.get("answer")
        if not isinstance(answer, dict):
            answer = {}
        request.answer = answer


class PermissionResolved(PermissionSettled, name="session.permission.resolved", recorded_by="ingest"):
    """A request was answered, or withdrawn."""

    state: str = Field(description="`resolved` or `cancelled`")
    option_id: str
    reason: str
    status: str | None = Field(
        default=None, description="for a question, `answered`, `declined`, `cancelled` or `withdrawn`"
    )
    answer: dict[str, Any] | None = Field(default=None, description="for a question, without what was typed")

    def update_inbox(self, inbox: Inbox) -> None:
        """Resolve the item about the request."""
        resolution = self.state or self.reason or "settled"
        inbox.resolve(resolution, key=self.item_key(is_question=self.status is not None))


class PermissionExpired(
    PermissionSettled,
    name="session.permission.expired",
    recorded_by="whatever finds that its agent is gone",
    audited=True,
    timeline=Label("A request of the agent was closed because its process ended", "off"),
):
    """A request can no longer be answered."""

    reason: str
    status: str | None = Field(default=None, description="for a question, `cancelled`")

    def update_inbox(self, inbox: Inbox) -> None:
        """Resolve the item about the request, together with those of all others that the end of the agent closed."""
        inbox.resolve_at_end(self.reason or "settled", self.item_key(is_question=self.status is not None))

    @classmethod
    def end_state(cls, state: str) -> str:
        """Return *expired*, whatever the event says."""
        return PermissionState.EXPIRED
