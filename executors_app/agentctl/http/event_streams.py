"""The journal as a WebSocket stream: ``GET /events``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from executors_app.agentctl.http.server import CLOSE_TIMEOUT, parse_number, websocket_for
from executors_app.agentctl.journal import Journal, JournalDamaged
from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.state_files import GenerationFence
from executors_app.wire.protocol import CLOSE_STALE_GENERATION

logger = logging.getLogger(__name__)

FRAME_BYTES: Final = 64 << 10
_MESSAGE_LIMIT: Final = 4096
_LAST_LINES_TIMEOUT: Final = 1.0
"""Seconds for consumers to read the last lines when agentctl ends."""
_OVERTAKEN: Final = (CLOSE_STALE_GENERATION, b"stale_generation")


@dataclass(slots=True, eq=False)
class _Stream:
    socket: web.WebSocketResponse
    generation: int
    sent: int
    trouble: str
    """The journal's trouble as last sent to the consumer."""
    close_request: asyncio.Future[tuple[int, bytes]]
    """Close code and reason, once we close the stream."""

    def request_close(self, code: int, reason: bytes) -> None:
        """Ask the stream to end."""
        if not self.close_request.done():
            self.close_request.set_result((code, reason))


class EventStreams:
    """All open streams; a newer generation closes the streams of the control plane it has taken over from."""

    def __init__(self, journal: Journal, fence: GenerationFence):
        self._journal, self._fence = journal, fence
        self._open: set[_Stream] = set()
        self._progress = StateNotifier()
        fence.on_newer_generation = self._close_older

    @property
    def is_attached(self) -> bool:
        """Whether a consumer is connected."""
        return bool(self._open)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Stream the journal until the consumer leaves; raises ApiError before the upgrade."""
        query = request.query
        after = parse_number(query.get("after", "0"), "after")
        generation = parse_number(query.get("generation"), "generation")
        socket = websocket_for(request, _MESSAGE_LIMIT)
        self._fence.admit(generation)
        await socket.prepare(request)
        stream = _Stream(socket, generation, after, "", asyncio.get_running_loop().create_future())
        if generation < self._fence.generation:  # a newer generation arrived during the upgrade
            stream.request_close(*_OVERTAKEN)
        await self._run(stream, query.get("epoch", ""))
        return socket

    async def _run(self, stream: _Stream, epoch: str) -> None:
        self._open.add(stream)
        receiver = asyncio.create_task(self._receive(stream), name="event stream in")
        sender = asyncio.create_task(self._send(stream, epoch), name="event stream out")
        try:
            await asyncio.wait((receiver, stream.close_request), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Stop receiving before closing: otherwise the close would not wait for the consumer's close frame.
            for task in (receiver, sender):
                task.cancel()
            await asyncio.wait((receiver, sender))
            await _close_socket(stream)
            self._open.discard(stream)
            self._progress.notify()

    # -- out ---------------------------------------------------------------------------------

    async def _send(self, stream: _Stream, epoch: str) -> None:
        try:
            await self._send_truncated_if_needed(stream, epoch)
            while True:
                await self._journal.wait_for_lines(stream.sent, stream.trouble)
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
            stream.request_close(WSCloseCode.INTERNAL_ERROR, b"journal_unreadable")

    async def _send_truncated_if_needed(self, stream: _Stream, epoch: str) -> None:
        """Send *truncated* and start at the first line, if the consumer's cursor is not in this journal."""
        journal = self._journal
        is_new = not epoch and stream.sent == 0
        if (is_new or epoch == journal.epoch) and journal.first_seq - 1 <= stream.sent <= journal.last_seq:
            return
        stream.sent = journal.first_seq - 1
        truncated = {"type": "truncated", **journal.report()}
        await stream.socket.send_frame(orjson.dumps(truncated), WSMsgType.TEXT)

    async def _send_lines(self, stream: _Stream) -> None:
        if stream.sent < self._journal.first_seq - 1:  # another consumer's ack deleted them
            await self._send_truncated_if_needed(stream, self._journal.epoch)
            return
        lines = self._journal.read(stream.sent, FRAME_BYTES)
        # Returns once the socket has taken it, so a slow consumer delays only itself.
        await stream.socket.send_frame(_decode_frame(b"\n".join(lines)), WSMsgType.TEXT)
        stream.sent += len(lines)
        self._progress.notify()

    # -- in ----------------------------------------------------------------------------------

    async def _receive(self, stream: _Stream) -> None:
        async for message in stream.socket:
            if message.type == WSMsgType.TEXT:
                self._handle_message(stream, message.data)

    def _handle_message(self, stream: _Stream, data: str) -> None:
        try:
            message: Any = orjson.loads(data)
            seq = message["ack"]
        except (ValueError, TypeError, KeyError):
            return  # a message of another protocol version
        # An acknowledgement deletes lines: only the newest generation may do that, for lines that it was sent.
        if isinstance(seq, int) and not isinstance(seq, bool) and stream.generation == self._fence.generation:
            self._journal.ack(min(seq, stream.sent))

    # -- ends --------------------------------------------------------------------------------

    def _close_older(self, generation: int) -> None:
        for stream in self._open:
            if stream.generation < generation:
                stream.request_close(*_OVERTAKEN)

    async def close(self) -> None:
        """Wait until consumers have the last lines, then close all streams."""
        last = self._journal.shown_seq
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINES_TIMEOUT):
                await self._progress.wait_for(lambda: all(stream.sent >= last for stream in self._open))
        for stream in self._open:
            stream.request_close(WSCloseCode.GOING_AWAY, b"agentctl_ends")
        await self._progress.wait_for(lambda: not self._open)


def _decode_frame(frame: bytes) -> bytes:
    """Return the frame as valid UTF-8 even after disk damage: anything else would break the connection."""
    try:
        frame.decode()
    except UnicodeDecodeError:
        return frame.decode("utf-8", "replace").encode()
    return frame


async def _close_socket(stream: _Stream) -> None:
    """Close the socket; give up on one that does not respond."""
    if stream.close_request.done():
        code, reason = stream.close_request.result()
    else:
        code, reason = (WSCloseCode.OK, b"")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await stream.socket.close(code=code, message=reason)
