"""A temporary installation for the demonstration, used only through its commands and its REST API.

Only processes that it started are ever signalled: they are identified by pid and start time, or by the marker of its
own executions.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
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

from executors_app.agentctl.process import identity, spawning

T = TypeVar("T")

_POLL_INTERVAL: Final = 0.1
_DEFAULT_TIMEOUT: Final = 60.0
"""Seconds until a step counts as failed."""


class DemoFailed(Exception):
    """A check of the demonstration failed; the message says which."""


def wait_until(condition: Callable[[], T], what: str, timeout: float = _DEFAULT_TIMEOUT) -> T:
    """Wait until ``condition`` returns a true value, and return it. Raises DemoFailed after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise DemoFailed(f"Not reached within {timeout:g} s: {what}")
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
        self._log = (self.home / "serve.log").open("ab")
        self._environment = spawning.build_environment({"KANDEV_DATA_DIR": str(self.data)}, {"KANDEV_CONTINUE": "off"})

    # --- commands ---

    def manage(self, *arguments: str) -> str:
        """Run a management command and return its output. Raises DemoFailed if it fails."""
        done = subprocess.run(
            [*_MANAGE, *arguments],
            env=self._environment,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=3 * _DEFAULT_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"manage.py {arguments[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    def serve(self) -> None:
        """Start the server and wait until it is ready; a second start uses the same address."""
        self._server = subprocess.Popen(
            [*_MANAGE, "serve", "--port", str(self._port)],
            env=self._environment,
            cwd=settings.BASE_DIR,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C reaches only the demonstration, which ends the server itself
        )
        assert self._server.stdout is not None  # noqa: S101
        line = self._server.stdout.readline().decode()
        found = re.search(r"(http://[\d.]+:(\d+))/", line)
        if not found:
            raise DemoFailed(f"manage.py serve did not start: {self.log()}")
        self.url, self._port = found[1], int(found[2])
        wait_until(self._is_ready, "the server is ready")

    def log(self) -> str:
        """Return the end of the server's log."""
        return (self.home / "serve.log").read_text(errors="replace")[-1500:]

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:  # noqa: S310  (our own server)
                return bool(answer.status == 200)
        except OSError:
            return False

    def server_processes(self) -> list[identity.ProcessIdentity]:
        """Return ``serve`` and its descendants."""
        return _process_tree(self._server.pid) if self._server else []

    def kill_server(self) -> list[identity.ProcessIdentity]:
        """Kill the web server, supervisor, worker and their parent; return the killed processes."""
        killed = self.server_processes()
        for process in killed:
            with contextlib.suppress(PermissionError):
                identity.send_signal(process, signal.SIGKILL)
        if self._server is not None:
            self._server.wait(timeout=_DEFAULT_TIMEOUT)
            if self._server.stdout is not None:
                self._server.stdout.close()
            self._server = None
        wait_until(lambda: not any(map(identity.is_alive, killed)), "the killed processes are gone")
        return killed

    # --- the API ---

    def log_in(self, user: str) -> None:
        """Use the API as ``user`` from now on."""
        self._token = self.manage("drf_create_token", user).split()[2]

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call the API and return the JSON response. Raises DemoFailed for any error."""
        request = urllib.request.Request(  # noqa: S310  (our own server)
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Token {self._token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_DEFAULT_TIMEOUT) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise DemoFailed(f"{method} {path}: {error.code} {error.read(500).decode('utf-8', 'replace')}") from error
        except OSError as error:
            raise DemoFailed(f"{method} {path}: {error}") from error
        return json.loads(text) if text else None

    # --- the agents ---

    def agent_processes(self) -> list[identity.ProcessIdentity]:
        """Return agentctl, guard and agent of every execution."""
        executions = (self.data / "agentctl").glob("*") if self.data.exists() else ()
        return [process for execution in executions for process in identity.find_marked(execution.name)]

    def said(self) -> bytes:
        """Return the output of the agents from their own logs, which they write before they send it."""
        return b"".join(path.read_bytes() for path in sorted(self.agent_home.glob("*.said")))

    def _nothing_runs(self) -> bool:
        """Kill running processes. Return False if there were any, as they may have started more meanwhile."""
        found = [*self.agent_processes(), *self._orphaned_children()]
        identity.kill_all(found, 10)
        return not found

    def _orphaned_children(self) -> list[identity.ProcessIdentity]:
        """Return processes that the server started while it was killed, identified by their data directory."""
        mark = f"KANDEV_DATA_DIR={self.data}".encode()
        pids = [pid for pid in identity.list_pids() if mark in identity.read_environment(pid)]
        return [found for pid in pids if (found := identity.identify(pid))]

    def close(self) -> None:
        """End all processes that were started here, and delete the directory."""
        try:
            self.kill_server()
        finally:
            wait_until(self._nothing_runs, "everything that was started here has ended")
            self._log.close()
            shutil.rmtree(self.home, ignore_errors=True)


_MANAGE: Final = (sys.executable, str(Path(settings.BASE_DIR) / "manage.py"))


def _process_tree(root: int) -> list[identity.ProcessIdentity]:
    """Return a process and its descendants, parents first."""
    parents = {pid: stat.parent for pid in identity.list_pids() if (stat := identity.read_stat(pid))}
    wanted = [root]
    for pid in wanted:  # grows while it is read
        wanted += [child for child, parent in parents.items() if parent == pid]
    return [found for pid in wanted if (found := identity.identify(pid))]
