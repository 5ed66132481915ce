"""The HTTP API of agentctl except the workspace, and the journal as a WebSocket stream (``GET /events``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from executors_app.agentctl.http.requests import (
    CLOSE_TIMEOUT,
    AuthMiddleware,
    json_response,
    parse_flag,
    parse_identifier,
    parse_number,
    parse_objects,
    parse_optional_object,
    parse_seconds,
    parse_setting_change,
    parse_start_request,
    parse_text,
    parse_wait,
    read_generation,
    read_json_object,
    websocket_for,
)
from executors_app.agentctl.http.workspace_api import WorkspaceApi
from executors_app.agentctl.jobs.requests import parse_job_request
from executors_app.agentctl.journal import Journal, JournalDamaged
from executors_app.agentctl.process.async_io import StateNotifier
from executors_app.agentctl.process.job_process import KEPT_BYTES
from executors_app.agentctl.sidecar import Sidecar
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


BODY_LIMIT: Final = 16 << 20
_GRACE: Final = 5.0
MAX_JOB_WAIT: Final = 25.0
"""Maximum seconds that a request waits for the end of a job."""

_PERMISSION: Final = "/permissions/{id}"
_JOB: Final = "/jobs/{id}"
_CANCELLED_JOB: Final = f"{_JOB}/cancel"

Command = Callable[[web.Request, dict[str, Any]], Awaitable[Any]]
Report = Callable[[], Any]


def build_app(
    sidecar: Sidecar, streams: EventStreams, token: str, host: str, port: int, *, users: Collection[int] | None = None
) -> web.Application:
    """Build the application of an agentctl that listens on ``host:port``; ``users`` as in ``AuthMiddleware``."""

    def on_contact() -> None:
        sidecar.last_contact = time.monotonic()

    names = () if users is None else ("localhost",)  # a Unix socket has no port
    auth = AuthMiddleware(token, host, port, on_contact, names, users=users)
    app = web.Application(middlewares=auth.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(_Api(sidecar, streams).routes())
    app.add_routes(WorkspaceApi(sidecar.workspace, sidecar.snapshots).routes())
    return app


class _Api:
    def __init__(self, sidecar: Sidecar, streams: EventStreams):
        self._sidecar, self._streams = sidecar, streams

    def routes(self) -> list[web.RouteDef]:
        """Return all routes except those of the workspace."""
        sidecar = self._sidecar
        return [
            web.get("/health", self._report(sidecar.health)),
            web.get("/capabilities", self._report(sidecar.capabilities)),
            web.get("/status", self._report(sidecar.status)),
            web.get("/agent/session", self._report(sidecar.agent_session)),
            web.get("/agent/left", self._report(sidecar.killed_processes)),
            web.post("/agent/start", self._command(self._start)),
            web.post("/agent/stop", self._command(self._stop)),
            web.post("/prompt", self._command(self._prompt, status=202)),
            web.post("/cancel", self._command(self._cancel)),
            web.post("/settings", self._command(self._change_setting, status=202)),
            web.post(_PERMISSION, self._command(self._answer)),
            web.post("/jobs", self._command(self._start_job)),
            web.get(_JOB, self._job),
            web.post(_CANCELLED_JOB, self._command(self._cancel_job)),
            web.post("/shutdown", self._command(self._shutdown)),
            web.get("/events", self._streams.serve, allow_head=False),
        ]

    # -- the three kinds of endpoints --------------------------------------------------------

    def _report(self, report: Report) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            return json_response(report())

        return handle

    def _command(self, command: Command, status: int = 200) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            generation = read_generation(request)
            body = await read_json_object(request)
            # Checked after the body has arrived: nothing may run between this check and the command.
            self._sidecar.fence.admit(generation)
            return json_response(await command(request, body), status)

        return handle

    # -- commands ----------------------------------------------------------------------------

    async def _start(self, request: web.Request, body: dict[str, Any]) -> Any:
        order = parse_start_request(body, self._sidecar.execution.workspace)
        await self._sidecar.prepare_workspace()
        answer = await self._sidecar.agent.start(order)
        workspace = self._sidecar.workspace
        rebuilt = {"rebuild_note": workspace.rebuild_note} if workspace.rebuild_note else {}
        return {**answer, "workspace": {**await workspace.call(workspace.head), **rebuilt}}

    async def _stop(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.stop(
            parse_seconds(body, "grace", _GRACE),
            parse_identifier(body, "intent_id", ""),
            delete_transcript=parse_flag(body, "delete_transcript", default=False),
        )

    async def _prompt(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.turns.accept(
            parse_identifier(body, "message_id"),
            parse_text(body, "text"),
            parse_objects(body, "attachments"),
            parse_identifier(body, "prompt_kind", "user"),
        )

    async def _cancel(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.cancel(parse_identifier(body, "message_id"))

    async def _change_setting(self, request: web.Request, body: dict[str, Any]) -> Any:
        change = parse_setting_change(body)
        return await self._sidecar.settings.request(
            self._sidecar.agent.driver(), change["change_id"], change["setting"], change["value"]
        )

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> Any:
        permission_id = request.match_info["id"]
        if body.get("option_id", "") is None:
            return await self._sidecar.permissions.expire(permission_id)
        return await self._sidecar.permissions.answer(
            permission_id, parse_text(body, "option_id"), parse_optional_object(body, "content")
        )

    async def _start_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        job, report = parse_job_request(body), _parse_report(request.query)
        self._sidecar.jobs.start(job)
        return await self._sidecar.jobs.report(job.job_id, *report)

    async def _job(self, request: web.Request) -> web.Response:
        report = _parse_report(request.query)
        return json_response(await self._sidecar.jobs.report(request.match_info["id"], *report))

    async def _cancel_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.jobs.cancel(request.match_info["id"])

    async def _shutdown(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.shutdown(
            parse_flag(body, "stop_agent", default=False), parse_identifier(body, "intent_id", "")
        )


def _parse_report(query: Mapping[str, str]) -> tuple[float, int]:
    """Return for how long to wait for a job's end, and how many bytes of each stream to report."""
    return parse_wait(query, "wait", MAX_JOB_WAIT), parse_number(query.get("tail", str(KEPT_BYTES)), "tail")
