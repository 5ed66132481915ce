"""An agentctl in its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine import agentctl_process
from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.journal_files import journal_directory, read_lines
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agentctl.running import TOKEN
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
OBEDIENT = "tests.agentctl.serve_obedient"
REAL = "executors_app.agentctl"


class Process(Protocol):
    """A process that ``subprocess`` or a launcher has started."""

    def poll(self) -> int | None:
        """Return None while the process runs."""

    def send_signal(self, sig: int) -> None:
        pass


def kill(process: Process) -> None:
    """Kill a process and wait for its end."""
    process.send_signal(signal.SIGKILL)
    eventually(lambda: process.poll() is not None, 60, "the process has ended")


@dataclass(frozen=True)
class _Forked:
    identity: ProcessIdentity

    def poll(self) -> int | None:
        return None if identity.is_alive(self.identity) else 0

    def send_signal(self, sig: int) -> None:
        identity.send_signal(self.identity, sig)


class Start(Protocol):
    """Starts the real agentctl for a place: `executed` or `forked`."""

    def __call__(self, place: Place, env: Mapping[str, str] | None = None, /) -> AbstractContextManager[Process]:
        """Wait until agentctl is ready; kill it at the end if it still runs."""


@dataclass(frozen=True)
class Place:
    """Directories of one execution; they outlive its agentctl."""

    base: Path

    @property
    def state_dir(self) -> Path:
        return self.base / "state"

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    @property
    def ready_file(self) -> Path:
        return self.base / "ready.json"

    def argv(self, module: str = OBEDIENT) -> list[str]:
        self.workspace.mkdir(exist_ok=True)
        token_file = self.base / "token"
        token_file.write_text(TOKEN + "\n")
        named = {
            "workspace": self.workspace,
            "state-dir": self.state_dir,
            "session-id": "session-1",
            "execution-id": f"execution-of-{self.base.name}",
            "token-file": token_file,
            "ready-file": self.ready_file,
            "label": "purpose=test",
        }
        return [
            sys.executable,
            "-m",
            module,
            "serve",
            *(word for name, value in named.items() for word in (f"--{name}", str(value))),
        ]

    @contextlib.contextmanager
    def agentctl(self, module: str = OBEDIENT, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start agentctl and wait until it is ready; kill it at the end if it still runs."""
        self.ready_file.unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(env or {})}
        with subprocess.Popen(self.argv(module), env=environment, text=True, stderr=subprocess.PIPE) as process:
            try:
                eventually(
                    lambda: self.ready_file.exists() or process.poll() is not None, 60, "agentctl is ready or has ended"
                )
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def forked_agentctl(self, env: Mapping[str, str] | None = None) -> Iterator[Process]:
        """Let the launcher of this process fork the real agentctl, which forks its guard itself."""
        self.ready_file.unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(env or {})}
        environment |= {EXECUTION_MARKER: f"execution-of-{self.base.name}"}
        log = os.open(self.base / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            found = identity.identify(agentctl_process._LAUNCHER.fork(self.argv(REAL), environment, log, log))
        finally:
            os.close(log)
        assert found is not None
        process = _Forked(found)
        try:
            eventually(
                lambda: self.ready_file.exists() or process.poll() is not None, 60, "agentctl is ready or has ended"
            )
            yield process
        finally:
            kill(process)

    def ready(self) -> dict[str, Any]:
        ready: dict[str, Any] = orjson.loads(self.ready_file.read_bytes())
        return ready

    def state(self) -> dict[str, Any]:
        """Return the ``state`` that an ``executors_running`` row stores of its process."""
        process = identity.identify(self.ready()["pid"])
        assert process is not None
        return {"process": process.to_json()}

    def client(self, generation: int = 1) -> AgentctlClient:
        return AgentctlClient(self.ready()["url"], TOKEN, f"execution-of-{self.base.name}", generation=generation)

    def lines(self) -> list[dict[str, Any]]:
        return list(read_lines(journal_directory(self.state_dir)))

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.lines()]


def executed(place: Place, env: Mapping[str, str] | None = None, /) -> AbstractContextManager[Process]:
    """Execute agentctl, which executes its guards."""
    return place.agentctl(REAL, env)


def forked(place: Place, env: Mapping[str, str] | None = None, /) -> AbstractContextManager[Process]:
    """Fork agentctl, which also forks its guards."""
    return place.forked_agentctl(env)
