"""An agentctl in this process, behind a real socket, with the obedient driver."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from executors_app.agentctl.agent_lifecycle import DriverFactory
from executors_app.agentctl.daemon import build_app, listen_tcp
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.event_streams import EventStreams
from executors_app.agentctl.sidecar import Execution, Sidecar
from executors_app.wire.journal_files import journal_directory, read_lines
from executors_app.wire.protocol import GENERATION_HEADER
from tests.agentctl.fakes import DELIVERED, Obedient
from tests.agentctl.journals import QUICK
from tests.waiting import PATIENCE, eventually_async

TOKEN = "a-token-of-some-length"


@dataclass
class Running:
    """A running agentctl, with methods that call it."""

    url: str
    http: aiohttp.ClientSession
    sidecar: Sidecar
    streams: EventStreams
    agent: Obedient
    state_dir: Path
    workspace: Path
    generation: int = 1
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {TOKEN}"})

    async def get(self, endpoint: str, **params: str) -> Any:
        async with self.http.get(self.url + endpoint, params=params, headers=self.headers) as response:
            return await response.json()

    async def post(self, endpoint: str, **body: Any) -> tuple[int, Any]:
        headers = self.headers | {GENERATION_HEADER: str(self.generation)}
        async with self.http.post(self.url + endpoint, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def put(self, path: str, content: bytes, expected: str | None = None) -> tuple[int, Any]:
        """Write a file of the workspace."""
        headers = self.headers | ({"If-Match": expected} if expected is not None else {})
        url = f"{self.url}/files/content"
        async with self.http.put(url, params={"path": path}, data=io.BytesIO(content), headers=headers) as response:
            return response.status, await response.json()

    async def start(self, launch_id: str = "launch-1", **more: Any) -> tuple[int, Any]:
        return await self.post("/agent/start", **{"launch_id": launch_id, "argv": ["x"], "driver": "obedient", **more})

    async def prompt(self, text: str, message_id: str = "m1") -> tuple[int, Any]:
        return await self.post("/prompt", message_id=message_id, text=text)

    async def state(self) -> str:
        return str((await self.get("/status"))["agent"]["state"])

    async def reaches(self, state: str) -> None:
        async def is_there() -> bool:
            return await self.state() == state

        assert await eventually_async(is_there, describe=f"the agent is {state}")

    async def pending_permission(self) -> str:
        async def pending() -> str:
            permissions = (await self.get("/status"))["pending_permissions"]
            return permissions[0]["permission_id"] if permissions else ""

        return str(await eventually_async(pending))

    def lines(self) -> list[dict[str, Any]]:
        return list(read_lines(journal_directory(self.state_dir)))

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.lines()]

    async def line(self, kind: str) -> dict[str, Any]:
        return dict(await eventually_async(lambda: next((line for line in self.lines() if line["kind"] == kind), {})))

    def delivered(self) -> list[str]:
        path = self.workspace / DELIVERED
        return path.read_text().split() if path.exists() else []

    def events(self, after: int = 0, epoch: str = "", generation: int | None = None) -> Any:
        params = {"after": str(after), "epoch": epoch, "generation": str(generation or self.generation)}
        return self.http.ws_connect(f"{self.url}/events", params=params, headers=self.headers)


@asynccontextmanager
async def agentctl(
    base: Path, limits: Any = QUICK, drivers: Mapping[str, DriverFactory] | None = None
) -> AsyncIterator[Running]:
    """Run agentctl on ``base``, which an earlier one may have used; ``drivers`` are added to the obedient one."""
    state_dir, workspace = base / "state", base / "workspace"
    state_dir.mkdir(exist_ok=True)
    workspace.mkdir(exist_ok=True)
    agent = Obedient()
    known = {"obedient": agent.create, **(drivers or {})}
    sidecar = Sidecar(Execution("execution-1", "session-1", workspace, state_dir), known, limits)
    streams = EventStreams(sidecar.journal, sidecar.fence)
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = build_app(sidecar, streams, TOKEN, "127.0.0.1", port)
    runner = await serve_app(app, listener, shutdown_timeout=0.2)
    async with aiohttp.ClientSession() as http:
        try:
            yield Running(f"http://127.0.0.1:{port}", http, sidecar, streams, agent, state_dir, workspace)
        finally:
            await sidecar.stop_for_good()
            await streams.close()
            await runner.cleanup()
            await sidecar.close()


async def next_lines(socket: aiohttp.ClientWebSocketResponse, count: int) -> list[dict[str, Any]]:
    """Return the next lines of an event stream, at least ``count`` of them."""
    lines: list[dict[str, Any]] = []
    while len(lines) < count:
        message = await socket.receive(timeout=PATIENCE)
        assert message.type == aiohttp.WSMsgType.TEXT, message
        lines += [orjson.loads(raw) for raw in message.data.split("\n")]
    return lines


def holds(whole: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether every item of ``part`` is in ``whole``."""
    return part.items() <= whole.items()
