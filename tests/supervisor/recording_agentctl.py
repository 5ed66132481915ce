"""A fake agentctl that records requests and keeps its journal in memory; it starts no agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from aiohttp import WSMsgType, web

from executors_app.machine import sockets
from executors_app.machine.process import identity
from executors_app.wire import socket_urls
from sessions_app.models import TaskSession
from tests.supervisor.journals import Line
from tests.supervisor.rows import change, execution_of
from tests.waiting import PATIENCE


class RecordingAgentctl:
    """A fake agentctl that answers ``/status``, streams its lines, and records listeners and acknowledgements."""

    def __init__(self, session: TaskSession, lines: Sequence[Line], agent: str):
        self.execution = execution_of(session)
        self.lines, self.agent, self.launch_id = list(lines), agent, session.launch_id
        self.url, self.epoch = "", "epoch-1"
        self.generations: list[int] = []
        self.acknowledged: list[int] = []
        self.prompts: list[dict[str, Any]] = []
        self.steered: list[dict[str, Any]] = []
        """The texts for a running turn."""
        self.left: dict[str, list[str]] | None = None
        """What its last agent left: ``processes`` and ``files``; None: it cannot tell."""
        self.refusal = ""
        """The code with which it refuses every prompt and text. ``hangs up`` takes it and breaks the connection,
        ``nonsense`` sends a malformed answer, ``duplicate`` says that it had the prompt before."""
        self.is_slow = False
        """Whether opening a stream takes longer than any timeout."""
        self._over = asyncio.Event()

    def report(self) -> dict[str, Any]:
        """Return a ``protocol.Status``."""
        last = self.lines[-1] if self.lines else {"epoch": self.epoch, "seq": 0}
        return {
            "status": "ok",
            "version": 1,
            "boot_id": "boot",
            "capabilities": {},
            "session_id": str(self.execution.session_id),
            "execution_id": str(self.execution.id),
            "generation": max(self.generations, default=0),
            "agent": {
                "state": self.agent,
                "pid": 4711,
                "started_at": "2026-01-01T00:00:00+00:00",
                "session_fingerprint": None,
                "active_turn": None,
                "exit_code": None,
                "launch_id": self.launch_id,
            },
            "journal": {"epoch": last["epoch"], "first_seq": 1, "last_seq": last["seq"]},
            "pending_permissions": [],
            "workspace": {"path": "/", "exists": True, "branch": "main", "dirty": False},
        }

    async def status(self, request: web.Request) -> web.Response:
        """Answer ``GET /status``."""
        return web.json_response(self.report())

    async def session(self, request: web.Request) -> web.Response:
        """Answer ``GET /agent/session``."""
        return web.json_response({"resume_token": "conversation-2", "last_message_uuid": "u", "fingerprint": "f"})

    async def what_is_left(self, request: web.Request) -> web.Response:
        """Answer ``GET /agent/left`` and ``GET /git/changes``."""
        if self.left is None:
            return web.json_response({"code": "not_found", "message": "No.", "details": {}}, status=404)
        return web.json_response({**self.left, "since": request.query.get("since", "")})

    async def prompt(self, request: web.Request) -> web.Response:
        """Answer ``POST /prompt``."""
        self.prompts.append(await request.json())
        return self._answer(request)

    async def steer(self, request: web.Request) -> web.Response:
        """Answer ``POST /steer``."""
        self.steered.append(await request.json())
        return self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        if self.refusal == "hangs up":
            assert request.transport is not None
            request.transport.abort()
        if self.refusal == "nonsense":
            return web.Response(text="<html>Welcome</html>")
        if self.refusal == "duplicate":
            return web.json_response({"accepted": True, "duplicate": True}, status=202)
        if self.refusal:
            return web.json_response({"code": self.refusal, "message": "No.", "details": {}}, status=409)
        return web.json_response({"accepted": True, "duplicate": False}, status=202)

    async def events(self, request: web.Request) -> web.WebSocketResponse:
        """Answer ``GET /events``: send the lines after the cursor in one frame, then nothing more."""
        self.generations.append(int(request.query["generation"]))
        if self.is_slow:
            await self._over.wait()
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        same = request.query["epoch"] == self.report()["journal"]["epoch"]
        after = int(request.query["after"]) if same else 0
        behind = [orjson.dumps(line) for line in self.lines if line["seq"] > after]
        if behind:
            await socket.send_bytes(b"\n".join(behind))
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.acknowledged.append(orjson.loads(message.data)["ack"])
        return socket

    def end(self) -> None:
        """Stop serving."""
        self._over.set()

    async def serve(self, notified: threading.Event) -> None:
        """Serve until ``end`` is called."""
        app = web.Application()
        app.router.add_get("/status", self.status)
        app.router.add_get("/agent/session", self.session)
        app.router.add_get("/agent/left", self.what_is_left)
        app.router.add_get("/git/changes", self.what_is_left)
        app.router.add_get("/events", self.events)
        app.router.add_post("/prompt", self.prompt)
        app.router.add_post("/steer", self.steer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        with TemporaryDirectory(prefix="agentctl-") as directory:
            path = Path(directory) / "agentctl.sock"
            await web.SockSite(runner, sockets.listen_unix(path, 5)).start()
            self.url = socket_urls.unix_url(path)
            notified.set()
            await self._over.wait()
            await runner.cleanup()


@contextmanager
def recording_agentctl(
    session: TaskSession, lines: Sequence[Line] = (), agent: str = "idle"
) -> Iterator[RecordingAgentctl]:
    """Run an agentctl of ``session`` on its own thread and store its URL in the row."""
    agentctl, loop = RecordingAgentctl(session, lines, agent), asyncio.new_event_loop()
    notified = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(agentctl.serve(notified)))
    thread.start()
    assert notified.wait(PATIENCE)
    state = {"process": identity.identify_self().to_json()}
    change(agentctl.execution, agentctl_url=agentctl.url, auth_token="token", state=state)
    try:
        yield agentctl
    finally:
        loop.call_soon_threadsafe(agentctl.end)
        thread.join(PATIENCE)
        loop.close()
