"""Updates of ACP agents as journal lines: which conversation each belongs to, and whether it is new or only replayed.

ACP says that an agent replays the conversation before it answers ``session/load``. Some answer first and replay
afterwards, some answer with another id than the one that was asked for, some send updates before there is any
conversation, and sub-agents have ids of their own. What cannot be told apart here is passed on with a mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby, islice
from typing import Any, Final

from executors_app.agentctl.drivers.json_values import object_of
from executors_app.wire.protocol import JournalKind
from executors_app.wire.replayed_texts import MAX_DIGESTS, MAX_TEXTS, text_digest

_QUIET: Final = 0.1
"""Seconds without an update after which a replay of all expected requests is over."""
_QUIET_INCOMPLETE: Final = 1.0
"""The same for a replay that lacks some of them."""
_FIRST_UPDATE: Final = 1.5
"""Seconds to wait for the first update of a replay, when nothing has been replayed before the answer."""
_REPLAY_LIMIT: Final = 10.0
"""Seconds after the answer at which a replay counts as over, whatever still arrives."""
_LATE_QUIET: Final = 1.0
"""Seconds without an update after which a replay that begins even later is over."""
_MAX_HELD: Final = 2000
"""Maximum number of updates that are held back until it is known what they are."""
_MAX_SUB_AGENTS: Final = 1000
_REFUSAL_TIME: Final = 1.0
"""Seconds within which a busy agent refuses a prompt, even if its other work produces output meanwhile."""
_CONTENT: Final = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"})
_TOOLS: Final = frozenset({"tool_call", "tool_call_update"})
SETTINGS_UPDATES: Final = frozenset(
    {"available_commands_update", "current_mode_update", "config_option_update", "session_info_update"}
)

Update = Mapping[str, Any]
USER_TEXT_BYTES: Final = 4096
_MESSAGE_KINDS: Final = {
    "user_message_chunk": JournalKind.MESSAGE_USER,
    "agent_message_chunk": JournalKind.MESSAGE_AGENT,
    "agent_thought_chunk": JournalKind.MESSAGE_THOUGHT,
}
_TOOL_FIELDS: Final[Mapping[str, tuple[str, type]]] = {
    "title": ("title", str),
    "kind": ("tool_kind", str),
    "status": ("status", str),
    "content": ("content", list),
    "locations": ("locations", list),
    "rawInput": ("raw_input", object),
    "rawOutput": ("raw_output", object),
}
"""ACP's field of a tool call, ours, and the type of its values; a value of another type is left out."""
LineParts = tuple[JournalKind, dict[str, Any]]


class _Phase(Enum):
    CLOSED = auto()
    """No conversation was asked for: nothing can belong to it."""
    CREATING = auto()
    """A new conversation has no id yet."""
    LOADING = auto()
    """The agent was asked to restore the conversation."""
    SETTLING = auto()
    """It has answered, and may replay afterwards."""
    OPEN = auto()


@dataclass(slots=True)
class PromptedTurn:
    """A turn from its prompt to its end."""

    text: str
    """The text of the prompt."""
    echoed: int = 0
    """How much of it the agent has repeated as words of its user."""
    cancelled: bool = False
    error: str = ""
    """The agent's last text, if it is an error."""
    sent_at: float = 0.0
    """When the prompt was sent last, on the monotonic clock."""
    has_begun: bool = False
    """Whether the agent seems to have begun with the prompt, so that it must not be sent again."""
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the turn is cancelled, or its agent has ended."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def takes_as_echo(self, update: Update) -> bool:
        """Whether an update only repeats the prompt, or its next part."""
        if update.get("sessionUpdate") != "user_message_chunk":
            return False
        text, start = content_text(update.get("content")).strip(), self.echoed
        while self.text[start : start + 1].isspace():
            start += 1
        if not text or not self.text.startswith(text, start):
            return False
        self.echoed = start + len(text)
        return True


class UpdateRecorder:
    """Records the updates of one agent process as journal lines.

    ``on_settings`` as in ``UpdateRouter``; ``on_other`` gets the notifications that are no updates.
    """

    def __init__(
        self,
        record: Callable[..., Any],
        on_settings: Callable[[Update], object],
        on_other: Callable[[str, Any], None],
    ):
        self._record, self._on_other = record, on_other
        self.router = UpdateRouter(record, on_settings, self._record_update)
        self.turn: PromptedTurn | None = None
        self.agent_name = ""
        """The agent's own name, once it has told it."""

    def handle_notification(self, method: str, params: Any) -> None:
        """Take one notification of the agent."""
        if method == "session/update" and isinstance(params, dict) and isinstance(params.get("update"), dict):
            self.router.receive(params.get("sessionId"), params["update"])
        else:
            self._on_other(method, params)

    def _record_update(self, update: Update, may_be_replayed: bool) -> None:
        if self.turn is not None and self._shows_begin(self.turn, update):
            self.turn.has_begun = True
        if self.turn is not None and self.turn.takes_as_echo(update):
            self.turn.has_begun = True  # whatever it answers, its conversation has the prompt now
            return
        # An agent may report its usage after its last text.
        if self.turn is not None and update.get("sessionUpdate") != "usage_update":
            self.turn.error = error_in_text(self.agent_name, update)
        kind, body = update_to_journal_line(update)
        if may_be_replayed:
            body["may_be_replayed"] = True
        self._record(kind, **body)

    @staticmethod
    def _shows_begin(turn: PromptedTurn, update: Update) -> bool:
        """Whether an update shows that the agent has begun with the prompt, and does not still end other work."""
        name = update.get("sessionUpdate")
        if name == "usage_update":
            return False
        return name == "tool_call" or time.monotonic() - turn.sent_at > _REFUSAL_TIME


class UpdateRouter:
    """Takes the updates of one agent process.

    ``on_settings`` gets the updates of the conversation that are about settings. ``on_update`` gets what else is new,
    and whether it may belong to a replay nevertheless.
    """

    def __init__(
        self,
        record: Callable[..., Any],
        on_settings: Callable[[Update], object],
        on_update: Callable[[Update, bool], None],
    ):
        self._record, self._on_settings, self._on_update = record, on_settings, on_update
        self.conversation_id: str | None = None
        self._phase = _Phase.CLOSED
        self._held: list[tuple[Any, Update]] = []
        self._replays: dict[Any, ReplayCollector] = {}
        self._replays_after_answer = False
        self._arrived = asyncio.Event()
        self._restored = self._prompted = False
        self._late_until = 0.0
        self._sub_agents: dict[str, str] = {}

    # -- the phases

    def begin_new(self) -> None:
        """Expect the updates of a new conversation, whose id is not known yet."""
        self._phase = _Phase.CREATING

    def begin_restore(self, conversation_id: str) -> None:
        """Expect a replay of this conversation."""
        self.conversation_id, self._phase = conversation_id, _Phase.LOADING
        self._replays, self._held, self._replays_after_answer = {}, [], False

    def answered(self) -> None:
        """Note that the agent has answered the request to restore; call it before any later update is handled."""
        if self._phase is _Phase.LOADING:
            self._phase = _Phase.SETTLING

    async def settle(self, named: str | None, expected: int) -> ReplayCollector:
        """Wait until the replay is over, within limits, and return it.

        Args:
            named: The id that the agent's answer names; None if it names none.
            expected: Number of user texts that the whole replay should contain; 0 if there is nothing to wait for.
        """
        self.answered()
        if expected:
            # Without a timeout of its own: the caller limits the whole start.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPLAY_LIMIT):
                    await self._wait_until_quiet(named, expected)
        return self._end_replay(named)

    async def _wait_until_quiet(self, named: str | None, expected: int) -> None:
        while True:
            self._arrived.clear()
            replay = self._replay_of(named)
            if replay.user_messages >= expected:
                limit = _QUIET
            elif replay.messages or self._held:
                limit = _QUIET_INCOMPLETE
            else:
                limit = _FIRST_UPDATE
            try:
                async with asyncio.timeout(limit):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _replay_of(self, named: str | None) -> ReplayCollector:
        """Return what was replayed under the id that the agent names, else under the one that was asked for."""
        return self._replays.get(named) or self._replays.get(self.conversation_id) or ReplayCollector()

    def _end_replay(self, named: str | None) -> ReplayCollector:
        replay = self._replay_of(named)
        self.open(named or self.conversation_id or "", restored=True)
        return replay

    async def settle_new(self, conversation_id: str, expected: int, *, is_known: bool) -> ReplayCollector:
        """Open the conversation that the agent named when it was asked for a new one; return what it replayed.

        Args:
            conversation_id: The id in the agent's answer.
            expected: As for ``settle``.
            is_known: Whether this is the id of an earlier conversation, which the agent then continues.
        """
        ours = (update for key, update in self._held if key in (None, conversation_id))
        # Nobody has prompted it yet, so words of a user can only be replayed.
        is_continued = is_known or any(update.get("sessionUpdate") == "user_message_chunk" for update in ours)
        if not is_continued:
            self.open(conversation_id)
            return ReplayCollector()
        held = self._held
        self.begin_restore(conversation_id)
        for key, update in held:
            self.receive(key, update)
        return await self.settle(conversation_id, expected)

    def open(self, conversation_id: str, *, restored: bool = False) -> None:
        """Take the conversation as open, and pass on what was held back for it."""
        asked_for, held = self.conversation_id, self._held
        self.conversation_id, self._phase, self._restored, self._held = conversation_id, _Phase.OPEN, restored, []
        for session_id, update in _join_chunks(held):
            # Some agents still use the id that they were asked for.
            if session_id == asked_for:
                self.receive(conversation_id, update)
            else:
                self.receive(session_id, update)

    def prompted(self) -> None:
        """Note that the agent gets a prompt: nothing after it belongs to a replay."""
        self._prompted = True

    # -- the updates

    def receive(self, session_id: Any, update: Update) -> None:
        """Take one update of a conversation."""
        if self._phase is _Phase.CLOSED:
            self._log("the agent sent an update before there was a conversation", update)
        elif self._phase is _Phase.CREATING:
            self._hold(session_id, update)
        elif self._phase in (_Phase.LOADING, _Phase.SETTLING):
            self._receive_replay(session_id, update)
        elif session_id in (None, self.conversation_id):
            self._receive_own(update)
        else:
            self._receive_other(session_id, update)

    def _hold(self, session_id: Any, update: Update) -> None:
        if len(self._held) < _MAX_HELD:
            self._held.append((session_id, update))
        else:
            self._log("the agent sent too many updates before its conversation was open", update)

    def _receive_replay(self, session_id: Any, update: Update) -> None:
        key = self._named_or_own(session_id)
        if key == self.conversation_id and self._takes_settings(update):
            return  # agents report what they offer while they load
        self._arrived.set()
        name = update.get("sessionUpdate")
        if self._phase is _Phase.SETTLING and not self._replays_after_answer:
            if name != "user_message_chunk":
                self._hold(session_id, update)
                return
            # Only a replay contains the user's words. So what was held back before them was replayed, too.
            self._replays_after_answer, held, self._held = True, self._held, []
            for earlier_id, earlier in held:
                self._collect(self._named_or_own(earlier_id), earlier)
        self._collect(key, update)

    def _named_or_own(self, session_id: Any) -> Any:
        """Return the conversation that an update names; that of the agent if it names none."""
        if session_id is None:
            return self.conversation_id
        return session_id

    def _collect(self, key: Any, update: Update) -> None:
        if len(self._replays) < _MAX_SUB_AGENTS or key in self._replays:
            self._replays.setdefault(key, ReplayCollector()).add(update)

    def _receive_own(self, update: Update) -> None:
        if self._takes_settings(update):
            return
        name = update.get("sessionUpdate")
        if self._restored and not self._prompted and name in _CONTENT | _TOOLS:
            now = time.monotonic()
            if name == "user_message_chunk" or now < self._late_until:
                self._late_until = now + _LATE_QUIET
                self._log("the agent replayed a part of the conversation after its start", update)
                return
            self._on_update(update, True)
            return
        self._on_update(update, False)

    def _takes_settings(self, update: Update) -> bool:
        """Pass on an update about settings; return False for any other."""
        if update.get("sessionUpdate") not in SETTINGS_UPDATES:
            return False
        self._on_settings(update)
        return True

    def _receive_other(self, session_id: Any, update: Update) -> None:
        """Record what a sub-agent says and does; of a conversation that is none of this agent's turns, only a log line.

        The process serves one conversation, so another one that appears during its turns was begun by the agent.
        """
        line = None
        if self._prompted:
            line = sub_agent_line(update)
        if line is None:
            self._log("the agent sent an update of another conversation", update)
            return
        kind, body = line
        self._record(kind, **body, sub_agent=self.name_sub_agent(session_id))

    def name_sub_agent(self, session_id: Any) -> str:
        """Return the name under which another conversation of the agent is shown; its id is a credential."""
        key = str(session_id)
        if key not in self._sub_agents and len(self._sub_agents) >= _MAX_SUB_AGENTS:
            return "Another sub-agent"
        return self._sub_agents.setdefault(key, f"Sub-agent {len(self._sub_agents) + 1}")

    def _log(self, text: str, update: Update) -> None:
        self._record(JournalKind.LOG, level="info", text=text, data={"params": {"update": dict(update)}})


def _join_chunks(held: list[tuple[Any, Update]]) -> Iterator[tuple[Any, Update]]:
    """Join the texts of chunks that follow each other, so that they can be compared with whole messages."""

    def part_of(one: tuple[Any, Update]) -> tuple[Any, ...]:
        session_id, update = one
        content = update.get("content")
        is_text = isinstance(content, dict) and content.keys() == {"type", "text"} and isinstance(content["text"], str)
        name = update.get("sessionUpdate")
        # Anything else is of no group with what follows it.
        if is_text and name in _CONTENT:
            return (str(session_id), name, update.get("messageId"))
        return (id(update),)

    for _, group in groupby(held, key=part_of):
        chunks = list(group)
        session_id, update = chunks[0]
        if len(chunks) > 1:
            text = "".join(each["content"]["text"] for _, each in chunks)
            update = {**update, "content": {"type": "text", "text": text}}
        yield session_id, update


def update_to_journal_line(update: Mapping[str, Any]) -> LineParts:
    """Return kind and body of the journal line for the ``update`` of a ``session/update``."""
    name = update.get("sessionUpdate")
    if name in _MESSAGE_KINDS:
        return _message_line(_MESSAGE_KINDS[name], update)
    if name in ("tool_call", "tool_call_update"):
        return _tool_line(update)
    if name == "plan" and isinstance(update.get("entries"), list):
        return JournalKind.PLAN, {"entries": update["entries"]}
    if name == "usage_update":
        return JournalKind.USAGE, {"usage": {key: value for key, value in update.items() if key != "sessionUpdate"}}
    return JournalKind.LOG, {"level": "debug", "text": f"the agent sent {name}", "data": dict(update)}


def _tool_line(update: Mapping[str, Any]) -> LineParts:
    if tool_call_id(update) is None:
        text = "the agent reported a tool call without an id"
        return JournalKind.LOG, {"level": "warning", "text": text, "data": dict(update)}
    if update.get("sessionUpdate") == "tool_call_update":
        return JournalKind.TOOL_UPDATE, acp_tool_call(update)
    return JournalKind.TOOL_CALL, {"title": "", "tool_kind": "other", "status": "pending", **acp_tool_call(update)}


def sub_agent_line(update: Mapping[str, Any]) -> LineParts | None:
    """Return the journal line for an update of a sub-agent: its text or a tool call; None for any other update."""
    kind, body = update_to_journal_line(update)
    if kind == JournalKind.MESSAGE_AGENT:
        return JournalKind.MESSAGE_SUB_AGENT, body
    if kind in (JournalKind.TOOL_CALL, JournalKind.TOOL_UPDATE):
        return (kind, body)
    return None


def acp_tool_call(update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a tool call or of a change to one, with only the fields that the agent sent."""
    fields = {}
    for theirs, (ours, kind) in _TOOL_FIELDS.items():
        value = update.get(theirs)
        if value is not None and isinstance(value, kind):
            fields[ours] = value
    parent = _parent_call_id(update)
    if parent:
        fields["parent_tool_call_id"] = parent
    return {"tool_call_id": tool_call_id(update) or "", **fields}


def _parent_call_id(update: Mapping[str, Any]) -> str:
    """Return the id of the tool call whose sub-agent makes this one; empty if the agent names none.

    ACP has no field for it: Claude Code and Qwen Code name it in ``_meta``, each in its own way.
    """
    about = object_of(update.get("_meta"))
    named = (object_of(about.get("claudeCode")).get("parentToolUseId"), about.get("parentToolCallId"))
    return next((call_id for call_id in named if isinstance(call_id, str)), "")


def tool_call_id(update: Mapping[str, Any]) -> str | None:
    """Return the id of a tool call as text, because some agents number their calls; None if it has none."""
    call_id = update.get("toolCallId")
    if isinstance(call_id, int) and not isinstance(call_id, bool):
        return str(call_id)
    if isinstance(call_id, str):
        return call_id
    return None


def content_text(content: Any) -> str:
    """Return the text of a content block or of a list of them; other content is named in brackets."""
    if isinstance(content, list):
        return "".join(map(content_text, content))
    if not isinstance(content, dict):
        if isinstance(content, str):
            return content
        return ""
    if isinstance(text := content.get("text"), str):
        return text
    resource = content.get("resource")
    if isinstance(resource, dict) and isinstance(text := resource.get("text"), str):
        return text
    return f"[{content.get('type')}: {content.get('uri') or content.get('name') or content.get('mimeType') or '?'}]"


def _message_line(kind: JournalKind, update: Mapping[str, Any]) -> LineParts:
    content = update.get("content")
    if not content or not isinstance(content, dict | list | str):
        return JournalKind.LOG, {
            "level": "warning",
            "text": "the agent sent a message without content",
            "data": dict(update),
        }
    body: dict[str, Any] = {"text": content_text(content)}
    blocks = [content]
    if isinstance(content, list):
        blocks = content
    if any(isinstance(block, dict) and block.get("type") != "text" for block in blocks):
        body["content"] = content
    if isinstance(update.get("messageId"), str):
        body["agent_message_id"] = update["messageId"]
    return kind, body


class ReplayCollector:
    """Collects the conversation that an agent replays while it loads it."""

    def __init__(self) -> None:
        self.messages = 0
        """Number of messages of user and agent; consecutive chunks of one message count once."""
        self.user_messages = 0
        """Number of messages of the user among them."""
        self._user: deque[str] = deque(maxlen=MAX_TEXTS)
        self._digests: deque[str] = deque(maxlen=MAX_DIGESTS)
        """Of all user texts but the last one, which may still grow."""
        self._last: tuple[Any, Any] | None = None

    def add(self, update: Mapping[str, Any]) -> None:
        """Add one replayed update."""
        name = update.get("sessionUpdate")
        if name not in ("user_message_chunk", "agent_message_chunk"):
            self._last = None
            return
        message = (name, update.get("messageId"))
        begins = message != self._last
        self._last = message
        self.messages += begins
        if name == "user_message_chunk":
            self.user_messages += begins
            self._add_user_text(content_text(update.get("content")), begins=begins)

    def _add_user_text(self, text: str, *, begins: bool) -> None:
        if not self._user:
            self._user.append(text)
        elif begins:
            self._digests.append(text_digest(self._user[-1]))
            self._user.append(text)
        else:
            self._user[-1] += text

    @property
    def user_texts(self) -> list[str]:
        """The last user texts, each cut to ``USER_TEXT_BYTES``."""
        return [text.encode("utf-8", "replace")[:USER_TEXT_BYTES].decode("utf-8", "ignore") for text in self._user]

    @property
    def user_digests(self) -> list[str]:
        """The digests of all user texts, whole, oldest first."""
        return [*self._digests, *(text_digest(text) for text in islice(reversed(self._user), 1))]


_ERRORS: Final[Mapping[str, re.Pattern[str]]] = {
    # Its only machine-readable report needs a capability of one client, which would cost the output of its commands.
    "@agentclientprotocol/codex-acp": re.compile(
        r"(?:unexpected status \d{3}\b|exceeded retry limit, last status: |stream disconnected before completion: "
        r"|[Cc]onnection failed: |Selected model is at capacity\.|We're currently experiencing high demand"
        r"|Quota exceeded\.|Codex ran out of room in the model's context window|internal error; agent loop died)"
    ),
}
"""How the errors begin that an agent reports as text, by the name that the agent reports."""


def error_in_text(agent_name: str, update: Mapping[str, Any]) -> str:
    """Return the error that an update consists of, or an empty string.

    Such an update is the whole error and an empty line, unlike a model's text, which comes in pieces.
    """
    pattern, content = _ERRORS.get(agent_name), update.get("content")
    if pattern is None or update.get("sessionUpdate") != "agent_message_chunk" or not isinstance(content, dict):
        return ""
    text = content.get("text")
    if not isinstance(text, str) or not text.endswith("\n\n"):
        return ""
    if pattern.match(text):
        return text.strip()
    return ""


def usage_of_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage that the answer to a prompt reports, by ACP or in its ``_meta``; empty if it reports none."""
    meta = result.get("_meta")
    extension = object_of(meta)
    for usage in (result.get("usage"), extension.get("usage")):
        if isinstance(usage, dict):
            return usage
    return {name: extension[name] for name in _USAGE_IN_META if name in extension}


_USAGE_IN_META: Final = ("inputTokens", "outputTokens", "totalTokens", "cachedReadTokens", "cachedWriteTokens")
