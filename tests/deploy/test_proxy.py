"""deploy/Caddyfile in front of real web processes: TLS, client addresses, WebSockets and failover."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from sessions_app.mcp_server.arguments import MAX_WAIT
from tests.deploy.caddy import SITE, Caddy
from tests.drills import kandev_processes
from tests.drills.deployment import Deployment
from tests.network import free_port
from tests.preloaded import PreloadedProcess
from tests.services import ROOT, require
from tests.waiting import eventually

SECRET_KEY: Final = "a key of these tests alone, that is long enough for anybody"
pytestmark = pytest.mark.any_database


class Site:
    """Two web processes and a supervisor behind the proxy, with certificates of the proxy's own authority."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.proxy = Caddy(deployment.home)
        self.url = self.proxy.url
        deployment.env |= {
            "KANDEV_SECRET_KEY": SECRET_KEY,
            "KANDEV_ALLOWED_HOSTS": SITE,
            "KANDEV_TRUSTED_ORIGINS": self.url,
        }
        self.processes: list[PreloadedProcess] = []

    def start(self) -> None:
        """Start everything and wait until the site is ready."""
        self.processes.append(kandev_processes.start(self.deployment, str(ROOT / "manage.py"), "supervise"))
        webs = [kandev_processes.web(self.deployment) for _ in range(2)]
        self.processes += [process for _, process in webs]
        self.proxy.start([url.removeprefix("http://") for url, _ in webs])
        eventually(
            lambda: self.get("/readyz")[0] == 200, timeout=120, describe=f"/readyz answers 200: {self.proxy.log()}"
        )

    @property
    def trust(self) -> ssl.SSLContext:
        """Return an SSL context that trusts only the proxy's own authority."""
        return self.proxy.trust

    def get(self, path: str, **headers: str) -> tuple[int, Any, str]:
        """Return status, headers and text of a page; status 0 without a response."""
        return self.proxy.get(path, **headers)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self.proxy.close()
        self.deployment.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require("caddy")
    deployment = Deployment(tmp_path_factory.mktemp("site"))
    deployment.prepare()
    (deployment.data / "secret-key").unlink()
    made = Site(deployment)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_pages_are_served_over_tls_with_hsts(site: Site) -> None:
    status, headers, text = site.get("/login/")
    assert status == 200
    assert "csrfmiddlewaretoken" in text
    assert headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "Secure" in headers["Set-Cookie"]


def test_forged_local_address_gets_no_metrics(site: Site) -> None:
    assert site.get("/metrics")[0] == 403  # refused by the web process: the request came through a proxy
    assert site.get("/metrics", **{"X-Forwarded-For": "127.0.0.1"})[0] == 403


async def test_sockets_and_their_origin_are_forwarded(site: Site) -> None:
    address = f"{site.url.replace('https', 'wss')}/ws/sessions/00000000-0000-4000-8000-000000000000/"
    token = {"Authorization": f"Token {site.deployment.seeded['token']}"}
    expected = {4404: token, 4401: {"Origin": site.url}}
    for code, headers in expected.items():
        async with aiohttp.ClientSession() as http, http.ws_connect(address, headers=headers, ssl=site.trust) as socket:
            await socket.receive(60)
            assert socket.close_code == code


def test_other_web_process_answers_while_one_is_down(site: Site) -> None:
    web = site.processes[1]
    os.killpg(web.pid, signal.SIGKILL)
    web.wait(60)
    assert {site.get("/healthz")[0] for _ in range(20)} == {200}
    assert json.loads(site.get("/readyz")[2])["status"] == "ready"


async def test_answer_that_does_not_begin_is_given_up_while_uploads_and_streams_last(tmp_path: Path) -> None:
    require("caddy")
    is_given_up, is_over = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/silent":  # as a machine that has lost power
            await is_over.wait()
        if request.path == "/upload":
            return web.Response(body=await request.read())
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/stream":
            await response.write(b"first ")
            await is_given_up.wait()
            await response.write(b"last")
        return response

    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        async with http.post(f"{proxy.url}/silent", ssl=proxy.trust) as silent:
            assert silent.status == 504
        yield b"last"

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner, proxy, port = web.AppRunner(app), Caddy(tmp_path), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    proxy.start([f"127.0.0.1:{port}"], ANSWER_WITHIN="200ms")
    try:
        await asyncio.to_thread(eventually, lambda: proxy.get("/")[0] == 200, timeout=60)
        async with aiohttp.ClientSession() as http, http.get(f"{proxy.url}/stream", ssl=proxy.trust) as stream:
            assert await stream.content.readexactly(6) == b"first "
            async with http.post(f"{proxy.url}/upload", data=parts(), ssl=proxy.trust) as upload:
                assert await upload.read() == b"first last"
            is_given_up.set()
            assert await stream.read() == b"last"
    finally:
        is_over.set()
        await asyncio.to_thread(proxy.close)
        await runner.cleanup()


def test_no_answer_of_kandev_takes_as_long_to_begin_as_the_proxy_waits() -> None:
    found = re.search(r"response_header_timeout \{\$ANSWER_WITHIN:(\d+)m\}", (ROOT / "deploy/Caddyfile").read_text())
    assert found is not None
    assert int(found[1]) * 60 > MAX_WAIT


def test_caddy_accepts_the_file(tmp_path: Path) -> None:
    require("caddy")
    shutil.copy2(ROOT / "deploy" / "Caddyfile", tmp_path)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SITE": "kandev.example"}
    command = ["caddy", "adapt", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"127.0.0.1:8000", "127.0.0.1:8001"} <= set(dials(json.loads(done.stdout)))


def dials(node: Any) -> Iterator[str]:
    """Yield the upstream addresses of the proxy."""
    if isinstance(node, dict):
        if "dial" in node:
            yield str(node["dial"])
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from dials(each)
