"""Changes to the conversation of one session: texts, tool calls, plans and answered requests, each with its event.

Consecutive chunks of one message within a batch become one event. The joined text is the same byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from executors_app.agentctl import questions
from executors_app.agentctl.questions import choices_of, fields_of, is_recorded
from executors_app.orm import PreparedQuery
from sessions_app.domain import attention
from sessions_app.domain.states import PermissionState, QuestionStatus
from sessions_app.models import (
    TEXT_ROLES,
    MessageDraft,
    NewEvent,
    PermissionRequest,
    SessionTransaction,
    append_texts,
    open_tools,
    random_ids,
    texts_of,
    tools_named,
    unfinished_messages,
    write_messages,
)
from sessions_app.models.attention import update_wording
from sessions_app.models.message import has_called_tools_since
from sessions_app.services.waits import option_name, permission_tokens

UNFINISHED_TOOL_STATES = ("pending", "in_progress", "")
PLAN_KEY = "plan"


@dataclass
class _Change:
    """One change of this batch to a message, with its event."""

    message: MessageDraft
    event: NewEvent
    is_new: bool = False
    pieces: list[str] = field(default_factory=list)


class ConversationUpdate:
    """The unfinished messages of a session, and the changes of the current batch to them."""

    def __init__(
        self,
        transaction: SessionTransaction,
        tool_keys: Collection[str] = (),
        unfinished: Sequence[MessageDraft] | None = None,
    ):
        """Read the unfinished messages, unless they are given, and the tool calls of the batch by their keys."""
        self.transaction = transaction
        if unfinished is None:
            session_id = transaction.session.id
            unfinished = unfinished_messages([session_id])[session_id]
        texts = [message for message in unfinished if message.role in TEXT_ROLES]
        self._growing: MessageDraft | None = texts[-1] if texts else None
        self._plan = next(
            (message for message in unfinished if message.key == PLAN_KEY and message.role == "status"), None
        )
        self._tools = {tool.key: tool for tool in tools_named(transaction.session.id, tool_keys)}
        """Tool calls of this batch, finished or not; newer than what the database has of them."""
        self._ids = random_ids()
        self._changes: list[_Change] = []
        self._last_text: _Change | None = None
        """The last change of this batch to the growing message."""
        self._joins_last_text = False
        """Whether the next chunk joins that change, because no other event came in between."""

    def add_message(
        self, role: str, text: str, *, key: str = "", complete: bool = True, **payload: Any
    ) -> MessageDraft:
        """Add a message at the end of the conversation."""
        session_id, at = self.transaction.session.id, self.transaction.at
        message = MessageDraft(session_id, role, at, key, payload, complete, id=next(self._ids))
        event = self.transaction.record_event(
            "session.message.added", message_id=str(message.id), role=role, payload=payload, complete=complete
        )
        self._changes.append(_Change(message, event, is_new=True, pieces=[text] if text else []))
        return message

    def append_text(self, role: str, chunk: str) -> None:
        """Append a chunk to the growing message of this role, or begin one."""
        if not chunk:
            return
        if self._growing is not None and self._growing.role != role:
            self.finish_text()
        if self._last_text is not None and self._joins_last_text:
            self._last_text.pieces.append(chunk)
            return
        if self._growing is None:
            self._growing = self.add_message(role, chunk, complete=False)
        else:
            event = self.transaction.record_event("session.message.updated", message_id=str(self._growing.id))
            self._changes.append(_Change(self._growing, event, pieces=[chunk]))
        self._last_text, self._joins_last_text = self._changes[-1], True

    def end_chunk(self) -> None:
        """Give the next chunk its own event, so that it stays behind what comes in between."""
        self._joins_last_text = False

    def finish_text(self) -> None:
        """Complete the growing message, in the event of its last chunk if that is part of this batch."""
        if self._last_text is not None:
            self._last_text.message.complete = self._last_text.event.payload["complete"] = True
        elif self._growing is not None:
            self._update(self._growing, complete=True)
        self._growing = self._last_text = None

    def update_tool(self, key: str, values: Mapping[str, Any]) -> None:
        """Add a tool call, or merge ``values`` into the known one; a None leaves the known value."""
        self.finish_text()
        known = {name: value for name, value in values.items() if value is not None}
        message = self._tools.get(key)
        payload = {**(message.payload if message else {}), **known}
        complete = str(payload.get("status") or "") not in UNFINISHED_TOOL_STATES
        if message is None:
            message = self.add_message("tool", "", key=key, complete=complete, **payload)
        else:
            self._update(message, complete=complete, payload=payload)
        self._tools[key] = message

    def known_tool_fields(self, key: str) -> Mapping[str, Any]:
        """Return the known fields of a tool call that is part of this batch; empty for any other."""
        message = self._tools.get(key)
        return message.payload if message else {}

    def set_plan(self, entries: Any) -> None:
        """Set the agent's plan: one message per turn, replaced as a whole."""
        self.finish_text()
        if self._plan is None:
            self._plan = self.add_message("status", "", key=PLAN_KEY, complete=False, plan=entries)
        else:
            self._update(self._plan, complete=False, payload={"plan": entries})

    def unfinished_tools(self) -> list[str]:
        """Return the titles of the tool calls without a result."""
        return [str(tool.payload.get("title") or tool.key) for tool in self._open_tools()]

    def _open_tools(self) -> list[MessageDraft]:
        """Return every tool call of the session without a result; queried only when needed, as there may be many."""
        tools = {**self._stored_open_tools, **self._tools}
        return [tool for tool in tools.values() if not tool.complete]

    @cached_property
    def _stored_open_tools(self) -> dict[str, MessageDraft]:
        return {tool.key: tool for tool in open_tools(self.transaction.session.id)}

    def has_called_tools_since(self, key: str) -> bool:
        """Whether the agent has called a tool since the user's message ``key``."""
        new = [change.message for change in self._changes if change.is_new]
        begin = next((at for at, one in enumerate(new) if one.role == "user" and one.key == key), None)
        if begin is not None or any(one.role == "tool" for one in new):
            return any(one.role == "tool" for one in new[begin or 0 :])
        return has_called_tools_since(self.transaction.session, key)

    def agent_text_since(self, key: str) -> str:
        """Return all text of the agent since the user's message ``key``."""
        begin = next(
            (at for at, one in enumerate(self._changes) if one.message.role == "user" and one.message.key == key), None
        )
        now = [piece for one in self._changes[begin or 0 :] if one.message.role == "agent" for piece in one.pieces]
        if begin is not None:
            return "".join(now)
        messages = self.transaction.session.messages
        told = messages.filter(role="user", key=key).order_by("seq").values_list("seq", flat=True).first() or 0
        before = texts_of(messages.filter(role="agent", seq__gt=told).order_by("seq"))
        return "".join([*before.values(), *now])

    def finish(self, tool_status: str = "") -> None:
        """Complete all messages at the end of a turn.

        Tool calls without a result get ``tool_status``, or keep their status if it is empty; none is ever claimed to
        be *completed*.
        """
        self.finish_text()
        for message in self._open_tools():
            payload = {**message.payload, "status": tool_status} if tool_status else None
            self._tools[message.key] = message
            self._update(message, complete=True, payload=payload)
        if self._plan is not None:
            self._update(self._plan, complete=True)
            self._plan = None

    def _update(self, message: MessageDraft, *, complete: bool, payload: dict[str, Any] | None = None) -> None:
        self.end_chunk()
        message.complete = complete
        said: dict[str, Any] = {"message_id": str(message.id), "complete": complete}
        if payload is not None:
            message.payload = said["payload"] = payload
        self._changes.append(_Change(message, self.transaction.record_event("session.message.updated", **said)))

    def join_texts(self) -> None:
        """Put the joined texts into the events."""
        for change in self._changes:
            if change.is_new or change.pieces:
                change.event.payload["text" if change.is_new else "append"] = "".join(change.pieces)

    def collect_rows(self, rows: _Rows) -> None:
        """Add the changed messages, once the events have their ``seq``, to which messages refer."""
        first = self._changes[0].event.seq if self._changes else 0
        for change in self._changes:
            message = change.message
            if change.is_new:
                message.seq = change.event.seq
                rows.new.append(message)
            elif message.seq < first:
                rows.old[message.id] = message
            message.updated_seq = change.event.seq
            if change.pieces:
                rows.texts.setdefault(message.id, []).extend(change.pieces)


@dataclass
class _Rows:
    """Messages to be written, and the pieces of text that they get."""

    new: list[MessageDraft] = field(default_factory=list)
    old: dict[uuid.UUID, MessageDraft] = field(default_factory=dict)
    texts: dict[uuid.UUID, list[str]] = field(default_factory=dict)


def schedule_writes(updates: Sequence[ConversationUpdate]) -> None:
    """Write the messages of all updates, of one database transaction, with one statement for each kind of row.

    Call it once, at the end. The rows are written when the events of all sessions have their ``seq``.
    """
    for update in updates:
        update.join_texts()
    updates[-1].transaction.after_events.append(lambda: _write(updates))


def _write(updates: Sequence[ConversationUpdate]) -> None:
    rows = _Rows()
    for update in updates:
        update.collect_rows(rows)
    write_messages(rows.new, list(rows.old.values()))
    append_texts({message_id: "".join(pieces) for message_id, pieces in rows.texts.items()}, known=rows.old)


TITLE_LIMIT: Final = 500
"""Characters of a title or option that the message about an answered request repeats."""
_TEXTS: Final = {
    QuestionStatus.ANSWERED: "Question answered",
    QuestionStatus.DECLINED: "Question declined",
    QuestionStatus.CANCELLED: "Question not answered",
    QuestionStatus.WITHDRAWN: "The agent withdrew its question",
}


def _answerer(asked: PermissionRequest) -> str:
    """Return the name of the user whose answer was used; empty if there is none."""
    token = permission_tokens([asked]).get(asked.id)
    return token.consumed_by.get_username() if token and token.consumed_by else ""


def add_permission_message(conversation: ConversationUpdate, asked: PermissionRequest) -> None:
    """Add the message about an answered permission: the request, the chosen option and who chose it."""
    title = str(asked.tool_call.get("title") or "Do something")[:TITLE_LIMIT]
    option = option_name(asked, asked.option_id)[:TITLE_LIMIT]
    told = {"permission_id": asked.id, "title": title, "option_id": asked.option_id, "option": option}
    conversation.finish_text()
    message = f"Permission answered: {title} – {option}"
    conversation.add_message("status", message, permission={**told, "by": _answerer(asked)})


def add_question_message(conversation: ConversationUpdate, asked: PermissionRequest) -> None:
    """Add the message about a settled question: its status, why, who answered, and the answer as far as it is kept."""
    title = str(asked.tool_call.get("title") or "A question")[:TITLE_LIMIT]
    status = asked.question_status
    told: dict[str, Any] = {
        "permission_id": asked.id,
        "title": title,
        "status": str(status),
        "reason": asked.reason,
        "by": _answerer(asked) if status in (QuestionStatus.ANSWERED, QuestionStatus.DECLINED) else "",
        "answer": _shown_answer(asked),
        "typed": any(not is_recorded(field) for field in fields_of(asked.question).values()),
    }
    if asked.question.get("mode") == questions.URL:
        told["url"] = asked.question.get("url", "")
    conversation.finish_text()
    conversation.add_message("status", f"{_TEXTS.get(status, status)}: {title}", question=told)


def _shown_answer(asked: PermissionRequest) -> list[dict[str, str]]:
    """Return label and words of each field of the answer that is kept, in the form's order."""
    fields = fields_of(asked.question)
    return [
        {
            "field": str(field.get("title") or name)[:TITLE_LIMIT],
            "value": _words(field, asked.answer[name])[:TITLE_LIMIT],
        }
        for name, field in fields.items()
        if name in asked.answer
    ]


def _words(field: Any, value: Any) -> str:
    labels = {choice.value: choice.label for choice in choices_of(field)}
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return ", ".join(labels.get(one, str(one)) for one in (value if isinstance(value, list) else [value]))


_DETAIL_FIELDS: Final = ("title", "tool_kind", "content", "locations", "raw_input")
"""Fields of a tool call that a person needs to see before answering a permission request."""
_EMPTY_VALUES: Final[tuple[object, ...]] = (None, "", [], {})
OPEN_REQUEST = PreparedQuery(
    lambda key: PermissionRequest.objects.filter(session_id=key, state=PermissionState.PENDING)
)


def complete_tool_call(asked: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool call of a permission request, with its empty fields filled in from what the log knows."""
    more = {
        name: known[name]
        for name in _DETAIL_FIELDS
        if known.get(name) not in _EMPTY_VALUES and asked.get(name) in _EMPTY_VALUES
    }
    return {**asked, **more}


def update_open_requests(transaction: SessionTransaction, key: str, known: Mapping[str, Any]) -> None:
    """Add what the agent has since reported about a tool call to its open permission requests and inbox items."""
    for row in OPEN_REQUEST.all(transaction.session.id):
        if str(row.tool_call.get("tool_call_id", ""))[:200] != key:
            continue
        tool_call = complete_tool_call(row.tool_call, known)
        if tool_call != row.tool_call:
            row.tool_call = tool_call
            row.save(update_fields=["tool_call"])
            update_wording(attention.request_notice(row.id, tool_call, row.question))
