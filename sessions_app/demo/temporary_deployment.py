"""A temporary installation for the demonstration, used only through its commands and its REST API.

Only processes that it started are ever killed: they carry its data directory, or the marker of one of its executions,
in their environment.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from django.conf import settings

from executors_app.machine.process import identity, spawning

T = TypeVar("T")

_POLL_INTERVAL: Final = 0.1
_TIMEOUT: Final = 60.0
"""Seconds until a step counts as failed."""
_KILL_TIMEOUT: Final = 10.0
"""Seconds in which a killed process has to be gone."""
_MANAGE: Final = (sys.executable, str(Path(settings.BASE_DIR) / "manage.py"))


class DemoFailed(Exception):
    """A check of the demonstration failed; the message says which."""


def wait_until(condition: Callable[[], T], description: str, timeout: float = _TIMEOUT) -> T:
    """Wait until ``condition`` returns a true value, and return it. Raises DemoFailed after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise DemoFailed(f"Not reached within {timeout:g} s: {description}")
        time.sleep(_POLL_INTERVAL)
    return result


class TemporaryDeployment:
    """The processes and the directory of one demonstration."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kandev-demo-"))
        self.data = self.home / "data"
        self.agent_home = self.home / "agent"
        self.url = ""
        self._port = 0
        self._token = ""
        self._server: subprocess.Popen[bytes] | None = None
        self._log_path = self.home / "serve.log"
        environment = spawning.build_environment({"KANDEV_DATA_DIR": str(self.data)}, {"KANDEV_CONTINUE": "off"})
        self._options: dict[str, Any] = {"env": environment, "cwd": settings.BASE_DIR, "stdin": subprocess.DEVNULL}

    def manage(self, *arguments: str) -> str:
        """Run a management command and return its output. Raises DemoFailed if it fails."""
        command = subprocess.run(
            [*_MANAGE, *arguments], capture_output=True, text=True, timeout=3 * _TIMEOUT, check=False, **self._options
        )
        if command.returncode:
            raise DemoFailed(f"manage.py {arguments[0]} failed: {command.stderr.strip()[-500:]}")
        return str(command.stdout)

    def serve(self) -> None:
        """Start the server and wait until it is ready; a second start uses the same address."""
        with self._log_path.open("ab") as log:
            self._server = subprocess.Popen(
                [*_MANAGE, "serve", "--port", str(self._port)],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the demonstration, which ends the server itself
                **self._options,
            )
        assert self._server.stdout is not None  # noqa: S101
        address = re.search(r"(http://[\d.]+:(\d+))/", self._server.stdout.readline().decode())
        if not address:
            raise DemoFailed("manage.py serve did not start")
        self.url, self._port = address[1], int(address[2])
        wait_until(self._is_ready, "the server is ready")

    def log(self) -> str:
        """Return the end of the server's log."""
        if self._log_path.exists():
            return self._log_path.read_text(errors="replace")[-1500:]
        return ""

    def log_in(self, user: str) -> None:
        """Use the API as ``user`` from now on."""
        self._token = self.manage("drf_create_token", user).split()[2]

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call the API and return the JSON response. Raises DemoFailed for any error."""
        data = None
        if body is not None:
            data = json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  (our own server)
            f"{self.url}/api/v1/{path}",
            method=method,
            data=data,
            headers={"Authorization": f"Token {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
                text = response.read()
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"{method} {path}: {error.code} {error.read(500).decode('utf-8', 'replace')}") from error
        except OSError as error:
            raise DemoFailed(f"{method} {path}: {error}") from error
        if text:
            return json.loads(text)
        return None

    def agent_output(self) -> bytes:
        """Return the output of the agents from their own logs, which they write before they send it."""
        return b"".join(path.read_bytes() for path in sorted(self.agent_home.glob("*.said")))

    def server_processes(self) -> list[identity.ProcessIdentity]:
        """Return the web server, supervisor, worker, their parent and their children."""
        return identity.find_marked(str(self.data), "KANDEV_DATA_DIR")

    def agent_processes(self) -> list[identity.ProcessIdentity]:
        """Return agentctl, guard and agent of every execution."""
        executions = (self.data / "agentctl").glob("*")
        return [process for execution in executions for process in identity.find_marked(execution.name)]

    def kill_server(self) -> int:
        """Kill every process of the server; return how many there were."""
        killed = _kill(self.server_processes)
        if self._server is not None:
            self._server.communicate()
            self._server = None
        return killed

    def kill_agents(self) -> int:
        """Kill agentctl, guard and agent of every execution; return how many processes there were."""
        return _kill(self.agent_processes)

    def close(self) -> None:
        """End all processes that were started here, and delete the directory."""
        try:
            self.kill_server()
            self.kill_agents()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:  # noqa: S310  (our own server)
                return bool(response.status == 200)
        except OSError:
            return False


def _kill(find_processes: Callable[[], list[identity.ProcessIdentity]]) -> int:
    """Kill what ``find_processes`` finds until it finds nothing: a process may have started another one meanwhile."""
    killed = 0
    while processes := find_processes():
        if identity.kill_all(processes, _KILL_TIMEOUT):
            raise DemoFailed(f"Some processes are still running {_KILL_TIMEOUT:g} s after kill -9")
        killed += len(processes)
    return killed
