"""While PostgreSQL is down, clients get an error that says when to retry; afterwards everything continues."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests import postgresql
from tests.drills import kandev_processes
from tests.drills.deployment import ApiError, Deployment
from tests.environment import DATABASE_URL
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.postgresql
KNOWN = {"Cookie": "kandev_session=0123456789abcdef0123456789abcdef"}
"""The cookie of a browser whose login has to be looked up."""


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    """Yield a PostgreSQL that a drill may stop."""
    with postgresql.own_server() as made:
        yield made


@pytest.fixture
def web(server: postgresql.Server, tmp_path: Path) -> Iterator[Deployment]:
    """Yield a web process on that database."""
    made = Deployment(tmp_path)
    made.env[DATABASE_URL] = server.new_database()
    made.prepare()
    made.url, process = kandev_processes.web(made)
    try:
        eventually(lambda: status_of(made, "healthz") == 200, timeout=60, describe="the web answers")
        yield made
    finally:
        kandev_processes.end(process)


def status_of(web: Deployment, path: str) -> int:
    """Return the status of a page for an anonymous user; 0 without a response."""
    try:
        return page(web, path, {})[0]
    except OSError:
        return 0


def page(web: Deployment, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    """Return status, ``Retry-After`` and text of a page."""
    request = urllib.request.Request(f"{web.url}/{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, "", answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Retry-After", ""), error.read().decode()


def turn_away(port: int, times: int) -> None:
    """Listen on the server's port and close that many connections without an answer."""
    with socket.create_server(("127.0.0.1", port)) as place:
        place.settimeout(60)
        for _ in range(times):
            place.accept()[0].close()


async def close_code(web: Deployment, headers: dict[str, str]) -> int | None:
    """Return the code with which a socket is closed."""
    url = f"{web.url}/ws/sessions/00000000-0000-4000-8000-000000000000/"
    async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=headers) as socket:
        await socket.receive(PATIENCE)
        return socket.close_code


async def test_requests_get_503_while_the_database_is_down(server: postgresql.Server, web: Deployment) -> None:
    token = {"Authorization": f"Token {web.seeded['token']}"}
    origin = {**KNOWN, "Origin": web.url}
    assert [await close_code(web, headers) for headers in (token, origin)] == [4404, 4401]

    server.stop()

    for method, body in (("GET", None), ("POST", {"title": "Drill", "team": web.seeded["team"]})):
        with pytest.raises(ApiError) as refused:
            web.api(method, "tasks/", body)
        assert refused.value.status == 503
        assert '"database_unavailable"' in refused.value.body
    status, retry_after, text = page(web, "", KNOWN)
    assert (status, retry_after) == (503, "5")
    assert "<h1>The database cannot be reached</h1>" in text
    assert "Try again in a few seconds" in text
    assert (status_of(web, "healthz"), status_of(web, "readyz")) == (200, 503)
    assert [await close_code(web, headers) for headers in (token, origin)] == [4503, 4503]

    server.start()

    assert web.api("GET", "tasks/")["count"] == 0
    assert [await close_code(web, headers) for headers in (token, origin)] == [4404, 4401]
    assert page(web, "", KNOWN)[0] == 200  # the login form


def test_control_plane_logs_little_during_an_outage_and_continues(server: postgresql.Server, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.env[DATABASE_URL] = server.new_database()
    deployment.prepare()
    try:
        deployment.serve()
        session = deployment.start_session("remember walrus")
        session.wait_for("WAITING_FOR_INPUT")
        before = len(deployment.log())

        server.stop()
        turn_away(server.port, 40)
        server.start()

        log = deployment.log()[before:]
        assert (log.count("Traceback"), log.count("the database cannot be used, waiting for it")) == (0, 1), log
        assert len(log.splitlines()) < 20, log
        eventually(deployment.is_ready, timeout=60, describe="/readyz answers 200")
        session.prompt("what was the word?")
        eventually(lambda: session.agent_text().count("walrus") == 2, timeout=60, describe="the agent answers")
    finally:
        deployment.close()
