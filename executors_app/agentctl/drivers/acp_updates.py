"""Decide which conversation an update of an ACP agent belongs to, and whether it is new or only replayed.

ACP says that an agent replays the conversation before it answers ``session/load``. Some answer first and replay
afterwards, some answer with another id than the one that was asked for, some send updates before there is any
conversation, and sub-agents have ids of their own. What cannot be told apart here is passed on with a mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from itertools import groupby
from typing import Any, Final

from executors_app.agentctl.drivers import events
from executors_app.agentctl.drivers.events import ReplayCollector
from executors_app.wire.protocol import JournalKind

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
_CONTENT: Final = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"})
_TOOLS: Final = frozenset({"tool_call", "tool_call_update"})

Update = Mapping[str, Any]


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


class UpdateRouter:
    """Takes the updates of one agent process.

    ``on_settings`` gets each update of the conversation first, and returns True if it is about settings. ``on_update``
    gets what is new, and whether it may belong to a replay nevertheless.
    """

    def __init__(
        self,
        record: Callable[..., Any],
        on_settings: Callable[[Update], bool],
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
            same = conversation_id if session_id == asked_for else session_id
            self.receive(same, update)

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
        key = self.conversation_id if session_id is None else session_id
        if key == self.conversation_id and self._on_settings(update):
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
                self._collect(self.conversation_id if earlier_id is None else earlier_id, earlier)
        self._collect(key, update)

    def _collect(self, key: Any, update: Update) -> None:
        if len(self._replays) < _MAX_SUB_AGENTS or key in self._replays:
            self._replays.setdefault(key, ReplayCollector()).add(update)

    def _receive_own(self, update: Update) -> None:
        if self._on_settings(update):
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

    def _receive_other(self, session_id: Any, update: Update) -> None:
        """Record what a sub-agent says and does; of a conversation that is none of this agent's turns, only a log line.

        The process serves one conversation, so another one that appears during its turns was begun by the agent.
        """
        line = events.sub_agent_line(update) if self._prompted else None
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
