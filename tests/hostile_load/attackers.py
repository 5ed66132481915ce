"""Threads that send requests as a user of the hostile team, one after the other, until they are told to stop."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.hostile_load.agent import BIG_SOURCE, KEYWORD_BOMB

TIMEOUT: Final = 60.0


@dataclass(slots=True)
class Request:
    """One request of an attacker."""

    name: str
    path: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Attacker(threading.Thread):
    """Repeats its requests; counts how they ended, and how long each took."""

    def __init__(self, url: str, requests: Sequence[Request], stopped: threading.Event):
        super().__init__(daemon=True)
        self._url, self._requests, self._stopped = url, requests, stopped
        self.outcomes: Counter[str] = Counter()
        """How often each request ended with each status; 0 without an answer."""
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def run(self) -> None:
        """Repeat the requests until told to stop."""
        for request in itertools.cycle(self._requests):
            if self._stopped.is_set():
                return
            started = time.monotonic()
            status = send(self._url, request)
            self.seconds[request.name].append(time.monotonic() - started)
            self.outcomes[f"{request.name} {status}"] += 1
            if status >= 400:
                self._stopped.wait(0.2)  # a refusal is cheap; do not drown the others' measurements in our own work


def send(url: str, request: Request) -> int:
    """Send a request and read the answer; return its status, 0 if there was none."""
    made = urllib.request.Request(
        f"{url}{request.path}", method=request.method, data=request.body, headers=dict(request.headers)
    )
    try:
        with urllib.request.urlopen(made, timeout=TIMEOUT) as answer:
            while answer.read(1 << 20):
                pass
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, http.client.HTTPException):
        return 0


class StalledReader(threading.Thread):
    """Opens event streams from their beginning, and reads none of them."""

    def __init__(self, url: str, path: str, headers: Mapping[str, str], stopped: threading.Event):
        super().__init__(daemon=True)
        self._request = urllib.request.Request(f"{url}{path}", headers=dict(headers))
        self._stopped = stopped

    def run(self) -> None:
        """Keep one stream open at a time, for two seconds each."""
        while not self._stopped.is_set():
            with suppress(OSError, http.client.HTTPException), urllib.request.urlopen(self._request, timeout=TIMEOUT):
                self._stopped.wait(2)
            self._stopped.wait(0.2)


def viewer_requests(session_path: str, cookie: str, token: str) -> list[Request]:
    """Return what a viewer of the team asks for: pages, files, git and a tool call with too many arguments."""
    page, api = {"Cookie": cookie}, {"Authorization": f"Token {token}"}
    at = f"/api/v1/{session_path}"
    return [
        Request("session page", f"/{session_path}/", headers=page),
        Request("highlighted file", f"{at}/files/content/?path={BIG_SOURCE}&highlight=true", headers=api),
        Request("timeline", f"/{session_path}/timeline/", headers=page),
        Request("git status", f"{at}/git/status/", headers=api),
        Request("messages", f"{at}/messages/", headers=api),
        Request("board", "/", headers=page),
        Request("git diff", f"{at}/git/diff/", headers=api),
        Request("session status", f"{at}/status/", headers=api),
        Request("events", f"{at}/events/?after=0", headers=api),
        Request("live parts", f"/{session_path}/live/", headers=page),
        mcp_call("MCP call", token, 5_000),
        mcp_call("oversized MCP call", token, 100_000),
    ]


def mcp_call(name: str, token: str, arguments: int) -> Request:
    """Return a tool call with so many arguments that the tool does not know."""
    call = {"name": "list_sessions", "arguments": {f"a{number}": 0 for number in range(arguments)}}
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    return Request(name, "/mcp", "POST", _rpc("tools/call", call), headers)


def _rpc(method: str, params: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def admin_requests(team: int, token: str) -> list[Request]:
    """Return what an admin of the team sends: lists of MCP servers, the largest permitted one too, and workflows."""
    headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}
    path = f"/api/v1/teams/{team}/mcp-servers/"
    text = "".join(f"n{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]\n" for number in range(1, 60))
    workflow = {"name": "bomb", "text": f"n0: &a0 [x]\n{text}"}
    return [
        Request("MCP servers", path, "PUT", _server_list(4), headers),
        Request("oversized MCP servers", path, "PUT", _server_list(50), headers),
        Request("workflow check", "/api/v1/workflows/check/", "POST", json.dumps(workflow).encode(), headers),
    ]


def _server_list(headers: int) -> bytes:
    """Return a list of MCP servers, each with so many headers that are expensive to search for secrets."""
    values = {f"H{number}": KEYWORD_BOMB[:230] for number in range(headers)}
    servers = [{"name": f"server {number}", "url": "https://example.org/", "headers": values} for number in range(50)]
    return json.dumps({"servers": servers}).encode()


def repeat(stopped: threading.Event, action: Callable[[], object], pause: float) -> threading.Thread:
    """Return a started thread that repeats an action with a pause of ``pause`` seconds."""

    def run() -> None:
        while not stopped.is_set():
            action()
            stopped.wait(pause)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
