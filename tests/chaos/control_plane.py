"""Web, supervisor and worker as processes of one deployment that can be killed and started again at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from tests.drills.deployment import MANAGE, Deployment
from tests.network import free_port
from tests.preloaded import PreloadedProcess
from tests.waiting import eventually

Role = Literal["web", "supervisor", "worker"]
POLL_INTERVAL: Final = 0.05


class ControlPlane:
    """The processes of the control plane; a thread restarts those that die."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.port = free_port()
        self.deaths: Counter[str] = Counter()
        """How often a process died, by role."""
        self.failures: list[str] = []
        """Processes that ended without being killed."""
        self._environments: dict[Role, Mapping[str, str]] = {}
        self._processes: dict[Role, PreloadedProcess] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._restart_thread = threading.Thread(target=self._restart_dead, name="restarter", daemon=True)
        deployment.url = f"http://127.0.0.1:{self.port}"

    def start(self, environments: Mapping[Role, Mapping[str, str]]) -> None:
        """Start the named roles, each with its own environment variables, and keep them running."""
        with self._lock:
            for role, environment in environments.items():
                self._environments[role] = environment
                self._processes[role] = self._spawn(role)
        if not self._restart_thread.is_alive():
            self._restart_thread.start()

    def wait_until_ready(self) -> None:
        """Wait until the web answers and the supervisor's first pass is over."""
        eventually(self.deployment.is_ready, timeout=90, describe="/readyz answers 200")

    def kill(self, role: Role) -> None:
        """Kill a process, which is then restarted."""
        with self._lock:
            process = self._processes.get(role)
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # a worker has children

    def restart_with(self, role: Role, environment: Mapping[str, str]) -> None:
        """Kill a process, which is then restarted with other environment variables."""
        with self._lock:
            self._environments[role] = environment
        self.kill(role)

    def pid(self, role: Role) -> int | None:
        """Return the pid of the role's current process."""
        with self._lock:
            process = self._processes.get(role)
            return None if process is None else process.pid

    def terminate(self, role: Role) -> None:
        """Send SIGTERM to a process, which is then restarted after its shutdown."""
        with self._lock:
            process = self._processes.get(role)
            if process is not None and process.poll() is None:
                process.terminate()

    def stop_at_once(self, role: Role) -> None:
        """Kill a process without a restart."""
        self.stop(role, signal.SIGKILL)

    def stop(self, role: Role, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process without a restart."""
        with self._lock:
            process = self._processes.pop(role, None)
        if process is not None:
            _end(process, number)

    def kill_all(self) -> None:
        """Kill all processes and restart none."""
        for role in list(self._processes):
            self.stop_at_once(role)

    def take_failures(self) -> list[str]:
        """Return the failures since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def close(self) -> None:
        """End all processes for good."""
        self._closing.set()
        if self._restart_thread.is_alive():
            self._restart_thread.join()
        self.kill_all()

    def _restart_dead(self) -> None:
        while not self._closing.wait(POLL_INTERVAL):
            with self._lock:
                for role, process in self._processes.items():
                    status = process.poll()
                    if status is not None:
                        self._died(role, status)
                        self._processes[role] = self._spawn(role)

    def _died(self, role: Role, code: int) -> None:
        self.deaths[role] += 1
        if code not in (-signal.SIGKILL, -signal.SIGTERM, 0):
            self.failures.append(f"the {role} ended unexpectedly with status {code}")

    def _spawn(self, role: Role) -> PreloadedProcess:
        with (self.deployment.home / "serve.log").open("ab") as log:
            return PreloadedProcess(
                self._argv(role),
                env={**self.deployment.env, **self._environments[role]},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _argv(self, role: Role) -> list[str]:
        if role == "web":
            address = ("-b", "127.0.0.1", "-p", str(self.port))
            return ["-m", "daphne", "-v", "0", "--no-server-name", *address, "kandev.asgi:application"]
        return [str(MANAGE), "supervise" if role == "supervisor" else "qcluster"]


def crash_environment(spec: str, directory: Path) -> dict[str, str]:
    """Return the environment variables that make a process die at crash points."""
    directory.mkdir(parents=True, exist_ok=True)
    return {"KANDEV_CRASH_AT": spec, "KANDEV_CRASH_DIR": str(directory)}


def _end(process: PreloadedProcess, number: signal.Signals) -> None:
    process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    with contextlib.suppress(ProcessLookupError):  # a worker leaves children
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
