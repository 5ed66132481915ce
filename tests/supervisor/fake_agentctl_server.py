"""Fake agentctls in one process, as many as a test needs: they serve agentctl's API on real sockets and start nothing.

``python -m tests.supervisor.fake_agentctl_server`` serves them; each has its own path under one address, as behind a
host daemon. The first line on standard output is that address; SIGTERM ends the process. The status of an agentctl
that was not launched is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import WSMsgType, web

from executors_app.machine.bulk_status import StatusTarget, poll_statuses
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation, Observed
from tests.preloaded import PreloadedProcess
from tests.support.fake_agentctl import FakeAgentctl, fake_status

ROOT = Path(__file__).resolve().parents[2]
STARTS_IN = 0.05
"""Seconds that an agent takes to start."""


class FakeExecution:
    """One fake execution: its journal, its listeners, and when its agents were started."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self.generation = 0
        self.launch_id = ""
        self.epoch = uuid.uuid4().hex

    def line(self, kind: str, **body: Any) -> dict[str, Any]:
        """Return the next line of its journal."""
        line = {"seq": len(self.lines) + 1, "epoch": self.epoch, "ts": time.time(), "kind": kind, **body}
        self.lines.append(line)
        return line


class FakeAgentctlServer:
    """All fake agentctls of the process."""

    def __init__(self) -> None:
        self.executions: dict[str, FakeExecution] = {}
        self.ended_journals: dict[str, list[dict[str, Any]]] = {}
        """Journals of those that are gone, by execution id, as on a disk."""
        self.received_prompts: dict[str, list[str]] = {}
        """All message ids that each was ever given, by execution id."""
        self.starting = self.most_starting = self.started = 0

    def app(self) -> web.Application:
        """Return the application with their endpoints."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/launch/{id}", self._launch),
                web.post("/end/{id}", self._end),
                web.post("/register/{id}", self._register),
                web.get("/counts", self._counts),
                web.get("/records", self._records),
                web.get("/journals/{id}", self._ended_journal),
                web.get("/bare", self._bare),
                web.get("/{id}/status", self._status),
                web.get("/{id}/events", self._events),
                web.get("/{id}/agent/session", self._session),
                web.get("/{id}/agent/left", self._no_leftovers),
                web.post("/{id}/agent/start", self._start),
                web.post("/{id}/agent/stop", self._end_session),
                web.post("/{id}/shutdown", self._end_session),
                web.post("/{id}/prompt", self._prompt),
            ]
        )
        return app

    def _execution(self, request: web.Request) -> FakeExecution:
        execution = self.executions.get(request.match_info["id"])
        if execution is None:
            raise self._not_found()
        return execution

    def _lives(self, request: web.Request, execution: FakeExecution) -> bool:
        """Return whether the agentctl is still alive: a dead one holds no connection and sends nothing."""
        return self.executions.get(request.match_info["id"]) is execution

    @staticmethod
    def _not_found() -> web.HTTPServiceUnavailable:
        body = '{"code": "not_found", "message": "There is no such agentctl.", "details": {}}'
        return web.HTTPServiceUnavailable(text=body, content_type="application/json")

    async def _launch(self, request: web.Request) -> web.Response:
        self.executions.setdefault(request.match_info["id"], FakeExecution())
        return web.json_response({})

    async def _register(self, request: web.Request) -> web.Response:
        """Register an agentctl with a live agent, as if it had been launched long ago."""
        self.executions.setdefault(request.match_info["id"], FakeExecution()).launch_id = "fake"
        return web.json_response({})

    async def _bare(self, request: web.Request) -> web.WebSocketResponse:
        """Open a WebSocket without an agentctl behind it: the least that a stream costs."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    async def _end(self, request: web.Request) -> web.Response:
        key = request.match_info["id"]
        execution = self.executions.pop(key, FakeExecution())
        self.ended_journals[key] = execution.lines or self.ended_journals.get(key, [])
        for socket in list(execution.sockets):
            await socket.close()
        return web.json_response({})

    async def _counts(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"up": sum(bool(execution.launch_id) for execution in self.executions.values()), "most": self.most_starting,
             "started": self.started}
        )  # fmt: skip

    async def _records(self, request: web.Request) -> web.Response:
        """Return which agentctls run an agent, and all prompts that each ever received."""
        return web.json_response(
            {
                "up": [key for key, execution in self.executions.items() if execution.launch_id],
                "heard": self.received_prompts,
            }
        )

    async def _ended_journal(self, request: web.Request) -> web.Response:
        return web.json_response(self.ended_journals.get(request.match_info["id"], []))

    async def _status(self, request: web.Request) -> web.Response:
        key = request.match_info["id"]
        execution = self._execution(request)
        status = dict(fake_status(FakeAgentctl(key, key, "", "", "answers")))
        state = "idle" if execution.launch_id else "none"
        status["generation"] = execution.generation
        status["agent"] = {**status["agent"], "state": state, "launch_id": execution.launch_id or None}
        status["journal"] = {"epoch": execution.epoch, "first_seq": 1, "last_seq": len(execution.lines)}
        status["workspace"] = {**status["workspace"], "shells": 0}
        return web.json_response(status)

    async def _events(self, request: web.Request) -> web.WebSocketResponse:
        execution = self._execution(request)
        execution.generation = max(execution.generation, int(request.query["generation"]))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if not self._lives(request, execution):
            await socket.close()
            return socket
        execution.sockets.add(socket)
        after = int(request.query["after"]) if request.query["epoch"] == execution.epoch else 0
        await self._send(socket, execution.lines[after:])
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
        execution.sockets.discard(socket)
        return socket

    @staticmethod
    async def _send(socket: web.WebSocketResponse, lines: Sequence[Mapping[str, Any]]) -> None:
        if lines:
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(b"\n".join(map(orjson.dumps, lines)))

    async def _session(self, request: web.Request) -> web.Response:
        return web.json_response({"resume_token": "conversation", "last_message_uuid": "", "fingerprint": "f"})

    async def _no_leftovers(self, request: web.Request) -> web.Response:
        return web.json_response({"processes": []})

    async def _start(self, request: web.Request) -> web.Response:
        body = await request.json()
        execution = self._execution(request)
        if execution.launch_id == body["launch_id"]:
            return self._answer(body)  # a repeated start
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(STARTS_IN)
        finally:
            self.starting -= 1
        if not self._lives(request, execution):
            raise self._not_found()
        self.started += 1
        execution.launch_id = body["launch_id"]
        return self._answer(body)

    @staticmethod
    def _answer(body: Mapping[str, Any]) -> web.Response:
        outcome = "resumed" if body["strategy"] == "native" else "created"  # nothing is replayed
        return web.json_response({"outcome": outcome, "resume_token": "conversation", "replayed": 0, "pid": 1})

    async def _end_session(self, request: web.Request) -> web.Response:
        self._execution(request).launch_id = ""
        return web.json_response({})

    async def _prompt(self, request: web.Request) -> web.Response:
        body = await request.json()
        execution = self._execution(request)
        message = {"message_id": body["message_id"]}
        if any(
            line["kind"] == "prompt.accepted" and line["message_id"] == body["message_id"] for line in execution.lines
        ):
            return web.json_response({"accepted": True, "duplicate": True}, status=202)
        self.received_prompts.setdefault(request.match_info["id"], []).append(body["message_id"])
        lines = [
            execution.line("prompt.accepted", **message, text=body["text"], prompt_kind=body["prompt_kind"]),
            execution.line("prompt.delivered", **message),
            execution.line("message.agent", text=f"answer {body['message_id']}"),
            execution.line("turn.completed", **message, stop_reason="end_turn"),
        ]
        for socket in list(execution.sockets):
            await self._send(socket, lines)
        return web.json_response({"accepted": True, "duplicate": False}, status=202)


class FakeAgentctlRuntime:
    """The runtime of these agentctls."""

    name = "fake_agentctls"
    isolated = True

    def __init__(self, url: str):
        self.url = url

    def check_config(self, config: Mapping[str, Any]) -> None:
        pass

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        pass

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Launch one more agentctl."""
        await self._ask("launch", spec.execution_id)
        return Launched(
            url=self._of(spec.execution_id),
            pid=None,
            boot_id="fake",
            workspace_path="/",
            worktree_id="w",
            worktree_path="/",
            worktree_branch="b",
        )

    def _of(self, execution_id: str) -> str:
        return f"{self.url}/{execution_id}"

    async def _ask(self, what: str, execution_id: str) -> None:
        async with aiohttp.ClientSession() as http, http.post(f"{self.url}/{what}/{execution_id}") as answer:
            answer.raise_for_status()

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Return True: it manages every execution."""
        return True

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Ask all of them; one that was not launched is dead."""
        targets = [StatusTarget(one.id, self._of(one.id), one.auth_token) for one in executions]
        seen = await poll_statuses(targets, timeout, concurrency)
        return {one.id: self._observation(one, seen[one.id]) for one in executions}

    def _observation(self, one: ExecutionFacts, status: Any) -> Observation:
        if isinstance(status, dict):
            return Observation(Observed.ALIVE, report=status, url=self._of(one.id))
        return Observation(Observed.DEAD, reason="process_gone")

    async def end(self, execution: ExecutionFacts) -> bool:
        """Remove the agentctl."""
        await self._ask("end", execution.id)
        return True

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """End nothing, as nothing is left over."""
        return 0

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Return no token: nothing is stored on a disk."""
        return None

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Return no lines: nothing is stored on a disk."""
        return ()


@contextmanager
def serving() -> Iterator[str]:
    """Run the server process; yield its URL."""
    argv = ["-m", "tests.supervisor.fake_agentctl_server"]
    quiet = subprocess.DEVNULL
    with PreloadedProcess(argv, env=os.environ, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGKILL)


async def _serve() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    runner = web.AppRunner(FakeAgentctlServer().app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
