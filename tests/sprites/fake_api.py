"""A fake Sprites API on the loopback, as https://sprites.dev/api and https://docs.sprites.dev document it.

It has no undocumented behaviour. Its sprites are processes of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from tests.sprites.machine import Machine, Service
from tests.waiting import PATIENCE

T = TypeVar("T")

TOKEN = "tests/1/the-token-of-an-organisation"


class FakeSpritesApi:
    """The fake API, with access to its sprites for tests."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.calls: list[str] = []
        self.url = ""
        self.away = False
        self.socket = Path(tempfile.mkdtemp(prefix="sprite-")) / "api.sock"
        self._loop = asyncio.new_event_loop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the API's event loop, from a test."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @contextmanager
    def serving(self) -> Iterator[FakeSpritesApi]:
        """Serve on a separate thread; end every process afterwards."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        runners = self.do(self._start())
        try:
            yield self
        finally:
            for machine in self.machines.values():
                self.do(machine.make_cold())
            for runner in runners:
                self.do(runner.cleanup())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(PATIENCE)
            self._loop.close()
            self.socket.unlink(missing_ok=True)
            self.socket.parent.rmdir()

    async def _start(self) -> list[web.AppRunner]:
        outside, inside = web.Application(middlewares=[self._authenticate], client_max_size=64 << 20), web.Application()
        outside.add_routes(
            [
                web.get("/v1/sprites", self.list),
                web.post("/v1/sprites", self.create),
                web.get("/v1/sprites/{name}", self.get),
                web.delete("/v1/sprites/{name}", self.delete),
                web.get("/v1/sprites/{name}/exec", self.exec),
                web.get("/v1/sprites/{name}/fs/read", self.read),
                web.put("/v1/sprites/{name}/fs/write", self.write),
                web.get("/v1/sprites/{name}/services/{service}", self.service),
                web.put("/v1/sprites/{name}/services/{service}", self.define),
                web.post("/v1/sprites/{name}/services/{service}/start", self.start),
                web.post("/v1/sprites/{name}/services/{service}/stop", self.stop),
                web.get("/v1/sprites/{name}/proxy", self.proxy),
            ]
        )
        inside.add_routes([web.put("/v1/tasks/{task}", self.hold), web.delete("/v1/tasks/{task}", self.release)])
        runners = [web.AppRunner(app, shutdown_timeout=0.1, access_log=None) for app in (outside, inside)]
        for runner in runners:
            await runner.setup()
        await web.TCPSite(runners[0], "127.0.0.1", 0).start()
        await web.UnixSite(runners[1], str(self.socket)).start()
        self.url = f"http://127.0.0.1:{runners[0].addresses[0][1]}"
        return runners

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        if self.away:
            return web.json_response({"error": "upstream unavailable"}, status=503)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"error": "unauthorized"}, status=401)
        name = request.match_info.get("name")
        if name is not None:
            if name not in self.machines:
                return web.json_response({"error": "sprite not found"}, status=404)
            if request.path.count("/") > 3:
                await self.machines[name].wake()
        answer: web.StreamResponse = await handler(request)
        return answer

    def _machine(self, request: web.Request) -> Machine:
        return self.machines[request.match_info["name"]]

    # -- sprites

    async def list(self, request: web.Request) -> web.Response:
        """``GET /v1/sprites``: a page of at most 50 sprites."""
        found = sorted(name for name in self.machines if name.startswith(request.query.get("prefix", "")))
        start = int(request.query.get("continuation_token", 0))
        end = start + min(50, int(request.query.get("max_results", 50)))
        more = end < len(found)
        return web.json_response(
            {
                "sprites": [self.machines[name].json() for name in found[start:end]],
                "has_more": more,
                "next_continuation_token": str(end) if more else None,
            }
        )

    async def create(self, request: web.Request) -> web.Response:
        """``POST /v1/sprites``."""
        body = await request.json()
        if body["name"] in self.machines:
            return web.json_response({"error": "name already exists"}, status=400)
        machine = self.machines[body["name"]] = Machine(body["name"], body.get("labels", []))
        return web.json_response(machine.json(), status=201)

    async def get(self, request: web.Request) -> web.Response:
        """``GET /v1/sprites/{name}``."""
        return web.json_response(self._machine(request).json())

    async def delete(self, request: web.Request) -> web.Response:
        """``DELETE /v1/sprites/{name}``."""
        machine = self._machine(request)
        await machine.make_cold()
        del self.machines[machine.name]
        return web.Response(status=204)

    # -- commands and files

    async def exec(self, request: web.Request) -> web.WebSocketResponse:
        """``WSS /v1/sprites/{name}/exec``: the first byte names the stream; 1 is stdout, 2 stderr, 3 the exit code."""
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *request.query.getall("cmd"), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        listening = asyncio.create_task(_listen(socket))
        output, errors = await process.communicate()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        for stream, data in ((1, output), (2, errors)):
            for at in range(0, len(data), 1 << 16):
                await socket.send_bytes(bytes([stream]) + data[at : at + (1 << 16)])
        await socket.send_bytes(bytes([3, process.returncode or 0]))
        await socket.close()
        return socket

    async def read(self, request: web.Request) -> web.Response:
        """``GET /v1/sprites/{name}/fs/read``."""
        path = Path(request.query["path"])
        return web.Response(body=path.read_bytes()) if path.is_file() else web.json_response({}, status=404)

    async def write(self, request: web.Request) -> web.Response:
        """``PUT /v1/sprites/{name}/fs/write``."""
        path, data = Path(request.query["path"]), await request.read()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(int(request.query.get("mode", "0644"), 8))
        return web.json_response({"path": str(path), "size": len(data), "mode": request.query.get("mode")})

    # -- services

    def _service(self, request: web.Request) -> Service:
        found = self._machine(request).services.get(request.match_info["service"])
        if found is None:
            raise web.HTTPNotFound
        return found

    async def service(self, request: web.Request) -> web.Response:
        """``GET /v1/sprites/{name}/services/{service_name}``."""
        return web.json_response(self._service(request).json())

    async def define(self, request: web.Request) -> web.Response:
        """``PUT /v1/sprites/{name}/services/{service_name}``: define a service and start it."""
        body, name, machine = await request.json(), request.match_info["service"], self._machine(request)
        if name in machine.services:
            await machine.stop(machine.services[name], 5)
        service = Service(name, body["cmd"], body.get("args", []), body.get("env", {}), body.get("dir"))
        machine.services[name] = service
        await machine.start(service)
        return web.Response(text='{"type":"started","timestamp":1}\n{"type":"complete","timestamp":2}\n')

    async def start(self, request: web.Request) -> web.Response:
        """``POST .../start``."""
        await self._machine(request).start(self._service(request))
        return web.Response(text='{"type":"started","timestamp":1}\n')

    async def stop(self, request: web.Request) -> web.Response:
        """``POST .../stop``: stop a service, which is not restarted."""
        service = self._service(request)
        if service.status != "running":
            return web.json_response({"error": "service not running"}, status=409)
        await self._machine(request).stop(service, float(request.query.get("timeout", "10s").rstrip("s")))
        return web.Response(text='{"type":"stopped","timestamp":1}\n')

    # -- tunnels

    async def proxy(self, request: web.Request) -> web.WebSocketResponse:
        """``WSS /v1/sprites/{name}/proxy``."""
        machine, socket = self._machine(request), web.WebSocketResponse()
        await socket.prepare(request)
        wanted = await socket.receive_json()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", wanted["port"])
        except OSError as error:
            await socket.send_json({"status": "error", "error": str(error)})
            await socket.close()
            return socket
        await socket.send_json({"status": "connected", "target": f"{wanted['host']}:{wanted['port']}"})
        machine.tunnels.add(socket)
        outwards = asyncio.create_task(_outwards(reader, socket))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data)
                    await writer.drain()
        finally:
            machine.tunnels.discard(socket)
            outwards.cancel()
            await asyncio.gather(outwards, return_exceptions=True)
            writer.close()
        return socket

    # -- inside: the management socket

    async def hold(self, request: web.Request) -> web.Response:
        """``PUT /v1/tasks/:name``."""
        assert set(await request.json()) == {"expire"}
        self.machines[f"kandev-{request.match_info['task']}"].tasks.add(request.match_info["task"])
        return web.json_response({"name": request.match_info["task"]})

    async def release(self, request: web.Request) -> web.Response:
        """``DELETE /v1/tasks/:name``."""
        self.machines[f"kandev-{request.match_info['task']}"].tasks.discard(request.match_info["task"])
        return web.Response(status=204)


async def _listen(socket: web.WebSocketResponse) -> None:
    """Read and drop the message for an empty stdin, and answer pings."""
    async for _ in socket:
        pass


async def _outwards(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            await socket.send_bytes(chunk)
        await socket.close()
