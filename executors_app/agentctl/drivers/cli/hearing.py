"""Takes in what a command line agent tells: its conversation's name is kept before anything that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.cli.told import Ended, Failed, Line, Named, Told


class Hearing:
    """What was told in one conversation; ``begin`` it anew for each turn."""

    def __init__(self, host: Host, asked: str | None, *, forks: bool = False):
        """``asked``: the conversation that the agent is to be in; with ``forks`` it begins a copy of that."""
        self.named: str | None = None
        """The conversation, as the agent itself names it."""
        self.mismatch: str = ""
        """A sentence, once the agent is in another conversation than it should be; nothing more is heard then."""
        self.over = asyncio.Event()
        """The turn is over: ``ended``, ``failed`` or ``mismatch`` says how."""
        self.ended: Ended | None = None
        self.failed: Failed | None = None
        self._host = host
        self._expected = None if forks else asked
        self._original = asked if forks else None

    def begin(self) -> None:
        """Forget how the last turn ended."""
        self.over.clear()
        self.ended = self.failed = None

    async def take(self, told: Iterable[Told]) -> None:
        """Take in what one line has come to."""
        for each in told:
            if self.mismatch:
                return
            match each:
                case Named():
                    await self._name(each.conversation_id)
                case Line():
                    self._host.record(each.kind, **each.body)
                case Ended():
                    await self._end(each)
                case Failed():
                    self.failed = each
                    self.over.set()

    async def _name(self, conversation_id: str) -> None:
        if not conversation_id or conversation_id == self.named:
            return
        expected = self.named or self._expected
        if expected is not None and conversation_id != expected:
            self.mismatch = "The agent was asked for its conversation and went on in another one."
        elif conversation_id == self._original:
            self.mismatch = "The agent was asked for a copy of its conversation and went on in the original."
        if self.mismatch:
            self.over.set()
            return
        await self._host.keep_token(conversation_id)
        self.named = conversation_id

    async def _end(self, ended: Ended) -> None:
        if self.named and ended.last_message_uuid:
            await self._host.keep_token(self.named, ended.last_message_uuid)
        self.ended = ended
        self.over.set()
