"""What journal lines change in the conversation of one session: texts, tool calls and plans, each with its event.

Consecutive chunks of one message within a batch become one event. The joined text is the same byte for byte.
``JournalUpdate`` is what the handlers of all topics get.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from executors_app.wire.protocol import JournalKind
from sessions_app.agents.services.agent_reports import AgentReports
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import RunState
from sessions_app.models import (
    TEXT_ROLES,
    MessageDraft,
    NewEvent,
    Prompt,
    SessionTransaction,
    Turn,
    answers_of,
    append_texts,
    first_parts,
    leading_texts,
    newest_answer,
    newest_tool,
    open_tool_sizes,
    open_tools,
    random_ids,
    tools_by_id,
    tools_of_turn,
    unfinished_messages,
    write_messages,
)
from sessions_app.permissions.open_requests import OpenRequests, changed_details
from sessions_app.recovery.rules import verification
from sessions_app.stream.events.conversation import MessageAdded, MessageEvent, MessageUpdated
from sessions_app.stream.models import has_called_tools_since
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.stream.rules.usage import parse_usage

JournalLine = Mapping[str, Any]
TEXT_KINDS: Final = frozenset({JournalKind.MESSAGE_AGENT.value, JournalKind.MESSAGE_THOUGHT.value})
TOOL_KINDS: Final = frozenset({JournalKind.TOOL_CALL.value, JournalKind.TOOL_UPDATE.value})
OUTPUT_ONLY_KINDS: Final = (
    TEXT_KINDS | TOOL_KINDS | {JournalKind.MESSAGE_SUB_AGENT.value, JournalKind.PLAN.value, JournalKind.USAGE.value}
)
"""Lines that only report output of the agent: no intent and no prompt becomes due because of them."""
TOOL_FIELDS: Final = (
    "tool_call_id",
    "title",
    "tool_kind",
    "status",
    "content",
    "locations",
    "raw_input",
    "raw_output",
    "sub_agent",
    "parent_tool_call_id",
)
TITLE_LIMIT: Final = 500
"""Characters of a title or option that a message about a tool call or request repeats."""
UNFINISHED_TOOL_STATES = ("pending", "in_progress", "")
LEFT_OPEN: Final = "unfinished"
"""Status of a tool call whose turn ended without its result; a later update may still bring one."""
PLAN_KEY = "plan"
MAX_OPEN_TOOLS: Final = 500
"""Tool calls without a result that a session may have. The end of a turn closes all of them in one transaction."""
MAX_OPEN_TOOL_BYTES: Final = 8 << 20
"""Size of these calls together; a single one may be larger."""
OPEN_TOOLS_KEY: Final = "open_tools"
"""Key of the message that a turn has more open tool calls."""
_TOO_MANY_TOOLS: Final = (
    f"The agent has more than {MAX_OPEN_TOOLS} tool calls without a result, or more than {MAX_OPEN_TOOL_BYTES >> 20} "
    "MiB of them. The oldest ones are shown as “No result” until their result arrives."
)
SUB_AGENT: Final = "sub_agent"
"""Key in the payload of a message: the name of the sub-agent that wrote it, or whose tool call it is."""
RECENT_MESSAGES: Final = 500
"""Number of messages in which a replayed text is searched."""
RECENT_CHARS: Final = 1 << 20
"""Characters of these messages that are read; an agent decides how long they are."""
MIN_QUOTE: Final = 40
"""Characters; a shorter text may be part of another message by chance."""


@dataclass
class _Change:
    """One change of this batch to a message, with its event."""

    message: MessageDraft
    event: NewEvent
    """Its place in the log, which it has before its text is complete."""
    is_new: bool = False
    complete: bool | None = None
    payload: dict[str, Any] | None = None
    payload_changes: dict[str, Any] | None = None
    pieces: list[str] = field(default_factory=list)

    def content(self) -> MessageEvent:
        """Return the event."""
        text, message_id = "".join(self.pieces), str(self.message.id)
        if self.is_new:
            return MessageAdded(
                message_id=message_id,
                role=self.message.role,
                payload_=self.payload or {},
                complete=bool(self.complete),
                text=text,
            )
        return MessageUpdated(
            message_id=message_id,
            complete=self.complete,
            payload_=self.payload,
            payload_changes=self.payload_changes,
            append=text or None,
        )


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
        texts = [message for message in unfinished if message.role in TEXT_ROLES or SUB_AGENT in message.payload]
        self._growing: MessageDraft | None = texts[-1] if texts else None
        self._plan = next(
            (message for message in unfinished if message.key == PLAN_KEY and message.role == "status"), None
        )
        self._open_tools_note = next((message for message in unfinished if message.key == OPEN_TOOLS_KEY), None)
        self._tools = {tool.key: tool for tool in _stored_tools(transaction, tool_keys)}
        """Tool calls of this turn that the batch names, finished or not; newer than what the database has of them."""
        self._earlier_tools: dict[str, MessageDraft | None] = {}
        """The newest calls of earlier turns with a key of this batch; None if there is none."""
        self._recent_texts: dict[str, list[str]] = {}
        """Stored texts by role, read once for all replayed lines of a batch."""
        self._begins: dict[str, int] = {}
        """Where in the changes of this batch turns begin that have no prompt, by their message id."""
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
        change = _Change(
            message,
            self.transaction.reserve_event(MessageAdded),
            is_new=True,
            complete=complete,
            payload=payload,
            pieces=[text] if text else [],
        )
        self._changes.append(change)
        return message

    def append_text(self, role: str, chunk: str, sub_agent: str = "") -> None:
        """Append a chunk to the growing message of this role and this writer, or begin one."""
        if not chunk:
            return
        if not self.is_growing(role, sub_agent):
            self.finish_text()
        if self._last_text is not None and self._joins_last_text:
            self._last_text.pieces.append(chunk)
            return
        if self._growing is None:
            about = {SUB_AGENT: sub_agent} if sub_agent else {}
            self._growing = self.add_message(role, chunk, complete=False, **about)
        else:
            event = self.transaction.reserve_event(MessageUpdated)
            self._changes.append(_Change(self._growing, event, pieces=[chunk]))
        self._last_text, self._joins_last_text = self._changes[-1], True

    def is_growing(self, role: str, sub_agent: str = "") -> bool:
        """Whether the next chunk of this role and this writer continues a message."""
        if self._growing is None:
            return False
        return (self._growing.role, self._growing.payload.get(SUB_AGENT, "")) == (role, sub_agent)

    def end_chunk(self) -> None:
        """Give the next chunk its own event, so that it stays behind what comes in between."""
        self._joins_last_text = False

    def finish_text(self) -> None:
        """Complete the growing message, in the event of its last chunk if that is part of this batch."""
        if self._last_text is not None:
            self._last_text.message.complete = self._last_text.complete = True
        elif self._growing is not None:
            self._update(self._growing, complete=True)
        self._growing = self._last_text = None

    def begin_turn(self) -> None:
        """Close what the last turn left open. From here on, an id of its tool calls names another call."""
        self.finish(tool_status=LEFT_OPEN)
        self._earlier_tools |= self._tools
        self._tools = {}

    def note_begin(self, turn: Turn) -> None:
        """Remember where in the batch a turn begins that the agent has begun without a prompt."""
        self._begins[turn.message_id] = len(self._changes)

    def call_tool(self, key: str, values: Mapping[str, Any]) -> None:
        """Add a tool call, or merge ``values`` into the known one of this turn.

        Some agents count their calls per answer of the model: the same id then names another call of the same turn,
        once the earlier one has ended.
        """
        known = self._tools.get(key)
        if known is not None and _is_another_call(known.payload, values):
            known = None
        self._write_tool(key, known, values)

    def update_tool(self, key: str, values: Mapping[str, Any]) -> None:
        """Merge ``values`` into a tool call; a None leaves the known value.

        Without such a call in this turn, the update is the result of an earlier turn's call that has none yet; else it
        begins a call.
        """
        known = self._tools.get(key)
        if known is None:
            earlier = self._earlier_tool(key)
            if earlier is not None and _has_no_result(earlier.payload):
                known = earlier
            else:
                known = None
        if known is not None and _comes_late(known.payload, values):
            values = {name: value for name, value in values.items() if name != "status"}
        self._write_tool(key, known, values)

    def _write_tool(self, key: str, message: MessageDraft | None, values: Mapping[str, Any]) -> None:
        self.finish_text()
        known = {name: value for name, value in values.items() if value is not None}
        payload = {**(message.payload if message else {}), **known}
        complete = not _has_no_result(payload)
        if message is None:
            message = self.add_message("tool", "", key=key, complete=complete, **payload)
        else:
            self._update(message, complete=complete, payload=payload)
        self._tools[key] = message

    def _earlier_tool(self, key: str) -> MessageDraft | None:
        if key not in self._earlier_tools:
            self._earlier_tools[key] = newest_tool(self.transaction.session.id, key)
        return self._earlier_tools[key]

    def known_tool_fields(self, key: str) -> Mapping[str, Any]:
        """Return the known fields of a tool call of this turn that the batch names; empty for any other."""
        message = self._tools.get(key)
        if message:
            return message.payload
        return {}

    def set_plan(self, entries: Any) -> None:
        """Set the agent's plan: one message per turn, replaced as a whole."""
        self.finish_text()
        if self._plan is None:
            self._plan = self.add_message("status", "", key=PLAN_KEY, complete=False, plan=entries)
        else:
            self._update(self._plan, complete=False, payload={"plan": entries})

    def unfinished_tools(self) -> list[str]:
        """Return the titles of the tool calls without a result."""
        return [str(tool.payload.get("title") or tool.key)[:TITLE_LIMIT] for tool in self._open_tools()]

    def _open_tools(self) -> list[MessageDraft]:
        """Return every tool call of the session without a result; queried only when needed, as there may be many."""
        earlier = [tool for tool in self._earlier_tools.values() if tool is not None]
        # A call that this batch has completed is still open in the database. It is only among the changes if its id
        # names another call by now.
        changed = [change.message for change in self._changes if change.message.role == "tool"]
        tools = (*self._stored_open_tools, *earlier, *self._tools.values(), *changed)
        known = {tool.id: tool for tool in tools}
        return [tool for tool in known.values() if not tool.complete]

    @cached_property
    def _stored_open_tools(self) -> Sequence[MessageDraft]:
        return open_tools(self.transaction.session.id)

    def has_called_tools_since(self, turn: Turn) -> bool:
        """Whether a tool may have run since a turn began; see `has_called_tools_since` of the models."""
        begin = self._begin_of(turn)
        if any(_shows_tool_use(change.message) for change in self._changes[begin or 0 :]):
            return True
        return begin is None and has_called_tools_since(turn)

    def _begin_of(self, turn: Turn) -> int | None:
        """Return the place among the changes at which a turn begins; None if it began before this batch."""
        if turn.message_id in self._begins:
            return self._begins[turn.message_id]
        for place, change in enumerate(self._changes):
            if change.message.role == "user" and change.message.key == turn.message_id:
                return place
        return None

    def is_known(self, role: str, text: str) -> bool:
        """Whether the stored conversation has this text in a message of the role; only its latest part is searched."""
        wanted = text.strip()
        if role not in self._recent_texts:
            recent = self.transaction.session.messages.filter(role=role).order_by("-seq")[:RECENT_MESSAGES]
            self._recent_texts[role] = leading_texts(recent, RECENT_CHARS, newest_first=True)
        for stored in self._recent_texts[role]:
            if stored.strip() == wanted or (len(wanted) >= MIN_QUOTE and wanted in stored):
                return True
        return False

    def is_known_tool(self, key: str) -> bool:
        """Whether the stored conversation has a tool call with this key, of any turn."""
        return self._earlier_tool(key) is not None

    def answer_to(self, turn: Turn) -> str:
        """Return the agent's text in the open turn; of what is stored, at most RECENT_CHARS."""
        return self._answer(turn, RECENT_CHARS)

    def only_text(self, turn: Turn, limit: int) -> str:
        """Return the agent's text in the open turn if that is all it did; empty if longer than ``limit`` characters."""
        if self.has_called_tools_since(turn):
            return ""
        text = self._answer(turn, limit + 1)
        return text if len(text) <= limit else ""

    def _answer(self, turn: Turn, limit: int) -> str:
        """Return the agent's text in a turn; of what is stored, at most ``limit`` characters."""
        begin = self._begin_of(turn)
        changes = self._changes[begin or 0 :]
        now = [piece for change in changes if change.message.role == "agent" for piece in change.pieces]
        before = leading_texts(answers_of(turn), limit) if begin is None else []
        return "".join([*before, *now])

    def answer_digest(self, turn: Turn) -> str | None:
        """Return the digest of the agent's last message in the open turn; None without one, or if it is too long."""
        message = self._last_answer(turn)
        if message is None:
            return None
        parts = first_parts(message.id, verification.ANSWER_LIMIT) if message.seq else []
        pieces = [piece for change in self._changes if change.message is message for piece in change.pieces]
        return verification.answer_digest("".join([*parts, *pieces]))

    def _last_answer(self, turn: Turn) -> MessageDraft | None:
        for change in reversed(self._changes):
            message = change.message
            if message.role == "agent":
                return message
            if message.role == "user" and message.key == turn.message_id:
                return None  # the turn began in this batch
        if self._growing is not None and self._growing.role == "agent":
            return self._growing
        if turn.first_seq is None:
            return None
        return newest_answer(self.transaction.session.id, turn.first_seq)

    def finish(self, tool_status: str = LEFT_OPEN) -> None:
        """Complete all messages at the end of a turn.

        Tool calls without a result get ``tool_status``; none is ever claimed to be *completed*.
        """
        self.finish_text()
        for message in self._open_tools():
            self._update(message, complete=True, payload={**message.payload, "status": tool_status})
        if self._plan is not None:
            self._update(self._plan, complete=True)
            self._plan = None
        if self._open_tools_note is not None:
            self._update(self._open_tools_note, complete=True)
            self._open_tools_note = None

    def close_oldest_tools(self) -> None:
        """Complete the oldest tool calls without a result beyond the limits; a later update may still bring one.

        Call it at the end of every batch. The end of the turn then never has to close more than the limits, and what a
        batch adds.
        """
        changed = {change.message.id: change.message for change in self._changes if change.message.role == "tool"}
        if all(tool.complete for tool in changed.values()):
            return
        stored = open_tool_sizes(self.transaction.session.id)
        sizes = {message_id: size for message_id, size in stored.items() if message_id not in changed}
        sizes |= {tool.id: json_size(tool.payload) for tool in changed.values() if not tool.complete}
        excess = _beyond_limits(sizes)
        tools = changed | {tool.id: tool for tool in tools_by_id([key for key in excess if key not in changed])}
        for message_id in excess:
            tool = tools[message_id]
            self._update(tool, complete=True, payload={**tool.payload, "status": LEFT_OPEN})
        if excess and self._open_tools_note is None:
            self._open_tools_note = self.add_message(
                "status", _TOO_MANY_TOOLS, key=OPEN_TOOLS_KEY, complete=False, level="warning"
            )

    def _update(self, message: MessageDraft, *, complete: bool, payload: dict[str, Any] | None = None) -> None:
        self.end_chunk()
        message.complete = complete
        change = _Change(message, self.transaction.reserve_event(MessageUpdated), complete=complete)
        if payload is not None:
            if _repeats_too_much(message.payload, payload):
                change.payload_changes = _changed_fields(message.payload, payload)
            else:
                change.payload = payload
            message.payload = payload
        self._changes.append(change)

    def fill_events(self) -> None:
        """Give the reserved events their content, with the joined texts."""
        for change in self._changes:
            change.event.fill(change.content())

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


REPEATED_LIMIT: Final = 16 * 1024
"""Bytes of unchanged content that an event of a tool call may repeat."""


def _changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def _repeats_too_much(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an event with the complete payload would repeat large fields that have not changed.

    A title update of a call with megabytes of output would otherwise write these again each time.
    """
    if not before.keys() <= after.keys():
        return False
    changed = _changed_fields(before, after)
    unchanged = {name: value for name, value in after.items() if name not in changed}
    return json_size(unchanged) > REPEATED_LIMIT


def _beyond_limits(sizes: dict[uuid.UUID, int]) -> list[uuid.UUID]:
    """Return which tool calls are too many, oldest first, given the sizes of all of them in this order."""
    used = 0
    newest_first = list(reversed(sizes))
    for kept, message_id in enumerate(newest_first):
        used += sizes[message_id]
        if kept == MAX_OPEN_TOOLS or (kept and used > MAX_OPEN_TOOL_BYTES):
            return newest_first[kept:][::-1]
    return []


def _stored_tools(transaction: SessionTransaction, keys: Collection[str]) -> Sequence[MessageDraft]:
    """Return the tool calls of the current turn, or of the last one, with these keys."""
    if not keys:
        return ()
    return tools_of_turn(transaction.session.id, transaction.newest_run, keys)


def _has_no_result(payload: Mapping[str, Any]) -> bool:
    return str(payload.get("status") or "") in (*UNFINISHED_TOOL_STATES, LEFT_OPEN)


def _comes_late(known: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether an update tells what a call was doing before its known result: some agents send them out of order."""
    return not _has_no_result(known) and str(values.get("status") or "") in UNFINISHED_TOOL_STATES


def _is_another_call(known: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether a call with the id of ``known`` is another one, and not a repetition or the result of the known one."""
    if _has_no_result(known):
        return False
    begins = str(values.get("status") or "") in UNFINISHED_TOOL_STATES
    differs = any(values.get(name) not in (None, "", known.get(name)) for name in ("title", "raw_input"))
    return begins or differs


def _shows_tool_use(message: MessageDraft) -> bool:
    return message.role == "tool" or (message.role == "status" and "permission" in message.payload)


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
        update.fill_events()
    updates[-1].transaction.after_events.append(lambda: _write(updates))


def _write(updates: Sequence[ConversationUpdate]) -> None:
    rows = _Rows()
    for update in updates:
        update.collect_rows(rows)
    write_messages(rows.new, list(rows.old.values()))
    append_texts({message_id: "".join(pieces) for message_id, pieces in rows.texts.items()}, known=rows.old)


class JournalUpdate:
    """What a batch of journal lines changes in one session; the handlers of all topics get it."""

    def __init__(
        self,
        transaction: SessionTransaction,
        tool_keys: Collection[str] = (),
        unfinished: Sequence[MessageDraft] | None = None,
    ):
        """``tool_keys`` and ``unfinished`` as in ``ConversationUpdate``."""
        self.transaction = transaction
        self.conversation = ConversationUpdate(transaction, tool_keys, unfinished)
        self.agent_reports = AgentReports(transaction)
        self.open_requests = OpenRequests(transaction)
        self.agent_gone = False
        """Whether a line reported that the agent process ended without a request."""

    def find_prompt(self, line: JournalLine) -> Prompt | None:
        """Return the prompt that a line names, or None."""
        return self.transaction.session.prompts.filter(message_id=line.get("message_id")).first()

    def finish(self) -> None:
        """Write the agent's reports; call it once, after the last line. The conversation is written by the caller."""
        self.agent_reports.write()


def add_agent_text(update: JournalUpdate, line: JournalLine) -> None:
    """Append to the agent's answer."""
    _append_text(update, line, "agent")


def add_thought(update: JournalUpdate, line: JournalLine) -> None:
    """Append to the agent's thoughts."""
    _append_text(update, line, "thought")


def _append_text(update: JournalUpdate, line: JournalLine, role: str) -> None:
    text = str(line.get("text", ""))
    if line.get("may_be_replayed") and update.conversation.is_known(role, text):
        return
    update.conversation.append_text(role, text)


def add_sub_agent_text(update: JournalUpdate, line: JournalLine) -> None:
    """Store the text of a sub-agent as a status message with its name: it is not the agent's answer."""
    update.conversation.append_text("status", str(line.get("text", "")), str(line.get("sub_agent") or "Sub-agent"))


def add_foreign_user_text(update: JournalUpdate, line: JournalLine) -> None:
    """Store text that the agent attributes to the user as a status message, apart from the user's own (rule 14)."""
    update.conversation.finish_text()
    update.conversation.add_message("status", str(line.get("text", "")), attributed_to="user")


def change_tool_call(update: JournalUpdate, line: JournalLine) -> None:
    """Add or update a tool call, and the open permission requests that show it."""
    conversation, turn = update.conversation, update.transaction.open_turn
    key, values = key_of_tool(line), tool_values(line)
    if line.get("may_be_replayed") and conversation.is_known_tool(key):
        return
    earlier = conversation.known_tool_fields(key)
    if line["kind"] == JournalKind.TOOL_CALL:
        conversation.call_tool(key, values)
    else:
        conversation.update_tool(key, values)
    if turn is not None and turn.state == RunState.WAITING:
        changed = changed_details(earlier, values)
        update.open_requests.update(turn, key, conversation.known_tool_fields(key), changed)


def tool_values(line: JournalLine) -> dict[str, Any]:
    """Return the fields of a tool call that a line sets."""
    return {name: line[name] for name in TOOL_FIELDS if line.get(name) is not None}


def replace_plan(update: JournalUpdate, line: JournalLine) -> None:
    """Show the agent's plan instead of its last one."""
    update.conversation.set_plan(line.get("entries", []))


def add_usage(update: JournalUpdate, line: JournalLine) -> None:
    """Merge the agent's usage figures: a figure that it no longer reports keeps its last value."""
    transaction, figures = update.transaction, parse_usage(line.get("usage", {}))
    transaction.set_fields(usage={**transaction.session.usage, **figures})
    turn = transaction.open_turn
    if turn is not None:
        transaction.note_turn(turn, usage={**(turn.usage or {}), **figures})
