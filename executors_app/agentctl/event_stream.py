"""``GET /events``: the journal from any point, live, with no more memory than one frame per consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from executors_app.agentctl.bell import Bell
from executors_app.agentctl.bodies import number
from executors_app.agentctl.fence import Fence
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.journal_store import JournalDamaged
from executors_app.agentctl.protocol import CLOSE_STALE_GENERATION

logger = logging.getLogger(__name__)

FRAME_BYTES: Final = 64 << 10
HEARTBEAT: Final = 30.0
_MESSAGE_LIMIT: Final = 4096
_LAST_LINES: Final = 1.0
"""Seconds for them when agentctl ends."""
_GOODBYE: Final = 2.0
"""Seconds for the consumer's own close."""
_OVERTAKEN: Final = (CLOSE_STALE_GENERATION, b"stale_generation")


@dataclass(slots=True, eq=False)
class _Stream:
    socket: web.WebSocketResponse
    generation: int
    sent: int
    trouble: str
    """Of the journal, as the consumer knows it."""
    farewell: asyncio.Future[tuple[int, bytes]]
    """Close code and reason, once we want the consumer to go."""

    def dismiss(self, code: int, reason: bytes) -> None:
        """Let the stream end."""
        if not self.farewell.done():
            self.farewell.set_result((code, reason))


class EventStreams:
    """All open streams; a newer generation closes the older ones (rule 17)."""

    def __init__(self, journal: Journal, fence: Fence):
        self._journal, self._fence = journal, fence
        self._open: set[_Stream] = set()
        self._progress = Bell()
        fence.on_raise = self._close_older

    @property
    def is_attached(self) -> bool:
        """Somebody reads."""
        return bool(self._open)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Check, upgrade, then stream until the consumer leaves; Refused before the upgrade."""
        query = request.query
        after = number(query.get("after", "0"), "after")
        generation = number(query.get("generation"), "generation")
        socket = web.WebSocketResponse(
            compress=False, heartbeat=HEARTBEAT, max_msg_size=_MESSAGE_LIMIT, timeout=_GOODBYE
        )
        if not socket.can_prepare(request).ok:
            raise web.HTTPBadRequest(reason="this is a WebSocket")
        self._fence.admit(generation)
        await socket.prepare(request)
        stream = _Stream(socket, generation, after, "", asyncio.get_running_loop().create_future())
        if generation < self._fence.generation:  # overtaken during the upgrade
            stream.dismiss(*_OVERTAKEN)
        await self._run(stream, query.get("epoch", ""))
        return socket

    async def _run(self, stream: _Stream, epoch: str) -> None:
        self._open.add(stream)
        receiver = asyncio.create_task(self._receive(stream), name="event stream in")
        sender = asyncio.create_task(self._send(stream, epoch), name="event stream out")
        try:
            await asyncio.wait((receiver, stream.farewell), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Nobody may be receiving while the socket closes: it would not wait for the consumer's own close.
            for task in (receiver, sender):
                task.cancel()
            await asyncio.wait((receiver, sender))
            await _say_goodbye(stream)
            self._open.discard(stream)
            self._progress.ring()

    # -- out ---------------------------------------------------------------------------------

    async def _send(self, stream: _Stream, epoch: str) -> None:
        try:
            await self._begin(stream, epoch)
            while True:
                await self._journal.wait_beyond(stream.sent, stream.trouble)
                if self._journal.shown_seq > stream.sent:
                    await self._send_lines(stream)
                else:
                    stream.trouble = self._journal.trouble
                    notice = {"type": "journal", "trouble": stream.trouble}
                    await stream.socket.send_frame(orjson.dumps(notice), WSMsgType.TEXT)
        except (ConnectionError, RuntimeError):
            pass  # the consumer has left; the receiving side ends the stream
        except (JournalDamaged, OSError) as error:
            logger.error("the journal cannot be read: %s", error)
            stream.dismiss(WSCloseCode.INTERNAL_ERROR, b"journal_unreadable")

    async def _begin(self, stream: _Stream, epoch: str) -> None:
        """Say *truncated* where the consumer's point is not in this journal, and begin at the first line."""
        journal = self._journal
        is_new = not epoch and stream.sent == 0
        if (is_new or epoch == journal.epoch) and journal.first_seq - 1 <= stream.sent <= journal.last_seq:
            return
        stream.sent = journal.first_seq - 1
        truncated = {"type": "truncated", **journal.report()}
        await stream.socket.send_frame(orjson.dumps(truncated), WSMsgType.TEXT)

    async def _send_lines(self, stream: _Stream) -> None:
        if stream.sent < self._journal.first_seq - 1:  # another consumer's ack let them go
            await self._begin(stream, self._journal.epoch)
            return
        lines = self._journal.read(stream.sent, FRAME_BYTES)
        # Returns once the socket has taken it: a slow consumer holds up itself alone.
        await stream.socket.send_frame(_as_text(b"\n".join(lines)), WSMsgType.TEXT)
        stream.sent += len(lines)
        self._progress.ring()

    # -- in ----------------------------------------------------------------------------------

    async def _receive(self, stream: _Stream) -> None:
        async for message in stream.socket:
            if message.type == WSMsgType.TEXT:
                self._received(stream, message.data)

    def _received(self, stream: _Stream, data: str) -> None:
        try:
            message: Any = orjson.loads(data)
            seq = message["ack"]
        except (ValueError, TypeError, KeyError):
            return  # of a neighbouring version
        if isinstance(seq, int) and not isinstance(seq, bool) and stream.generation == self._fence.generation:
            self._journal.ack(min(seq, stream.sent))

    # -- ends --------------------------------------------------------------------------------

    def _close_older(self, generation: int) -> None:
        for stream in self._open:
            if stream.generation < generation:
                stream.dismiss(*_OVERTAKEN)

    async def close(self) -> None:
        """Give the consumers the last lines, then say goodbye."""
        last = self._journal.shown_seq
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINES):
                await self._progress.until(lambda: all(stream.sent >= last for stream in self._open))
        for stream in self._open:
            stream.dismiss(WSCloseCode.GOING_AWAY, b"agentctl_ends")
        await self._progress.until(lambda: not self._open)


def _as_text(frame: bytes) -> bytes:
    """The frame as UTF-8 whatever a disk has made of it: anything else would break the whole connection."""
    try:
        frame.decode()
    except UnicodeDecodeError:
        return frame.decode("utf-8", "replace").encode()
    return frame


async def _say_goodbye(stream: _Stream) -> None:
    """Close the socket; one that takes nothing any more is cut off."""
    code, reason = stream.farewell.result() if stream.farewell.done() else (WSCloseCode.OK, b"")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE):
            await stream.socket.close(code=code, message=reason)
