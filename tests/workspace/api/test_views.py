"""Files come from the session's agentctl; here from a small fake one that checks its token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from urllib.parse import parse_qs, urlsplit

import pytest
from rest_framework.test import APIClient

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.wire import socket_urls
from tests.api.world import SECRET, World

pytestmark = pytest.mark.database
FOLDER = {"path": "", "entries": [{"name": "a.txt", "type": "file", "size": 2}], "truncated": False}
CONTENT = {"path": "a.txt", "size": 2, "encoding": "utf-8", "content": "hi", "truncated": False}


class WorkspaceOfOneFile(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = parse_qs(address.query).get("path", [""])[0]
        if self.headers["Authorization"] != f"Bearer {SECRET}":
            self._answer(401, {"code": "not_authenticated", "message": "Who are you?", "details": {}})
        elif (address.path, path) == ("/files", ""):
            self._answer(200, FOLDER)
        elif (address.path, path) == ("/files/content", "a.txt"):
            self._answer(200, CONTENT)
        else:
            self._answer(404, {"code": "not_found", "message": "There is no such file.", "details": {}})

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the name of the base class)
        """Log nothing."""


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Return the path of a socket in a directory that is only ours."""
    directory = tmp_path / "socket"
    directory.mkdir(mode=0o700)
    return directory / "agentctl"


@pytest.fixture
def agentctl(world: World, socket_path: Path) -> Iterator[World]:
    with ThreadingUnixStreamServer(str(socket_path), WorkspaceOfOneFile) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        world.mark_running(socket_urls.unix_url(socket_path))
        execution = world.execution()
        execution.auth_token, execution.state = SECRET, {"process": identity.identify_self().to_json()}
        execution.save()
        yield world
        server.shutdown()


def test_workspace_files_are_shown(agentctl: World, api: APIClient) -> None:
    assert api.get(agentctl.url("files/")).json() == FOLDER
    assert api.get(agentctl.url("files/content/"), {"path": "a.txt"}).json() == CONTENT


def test_missing_file_returns_404(agentctl: World, api: APIClient) -> None:
    answer = api.get(agentctl.url("files/content/"), {"path": "b.txt"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_agentctl_that_refuses_our_token_counts_as_unreachable(agentctl: World, api: APIClient) -> None:
    execution = agentctl.execution()
    execution.auth_token = "another"
    execution.save()
    answer = api.get(agentctl.url("files/"))
    assert (answer.status_code, answer.json()["code"]) == (503, "agentctl_unreachable")


@pytest.mark.parametrize(
    "values", [{"status": "stopped"}, {"agentctl_url": ""}, {"agentctl_url": "unix:/nowhere/agentctl"}]
)
def test_files_are_unavailable_without_agentctl(agentctl: World, api: APIClient, values: dict[str, str]) -> None:
    ExecutorRunning.objects.update(**values)
    answer = api.get(agentctl.url("files/"))
    assert (answer.status_code, answer.json()["code"]) == (503, "agentctl_unreachable")


@pytest.mark.parametrize("query", [{}, {"path": ""}, {"path": "a\0b"}, {"path": "x" * 5000}])
def test_path_is_required_and_validated(world: World, api: APIClient, query: dict[str, str]) -> None:
    answer = api.get(world.url("files/content/"), query)
    assert (answer.status_code, list(answer.json()["details"])) == (400, ["path"])
