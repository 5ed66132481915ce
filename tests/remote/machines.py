"""Another machine: an ``agentctl host`` on a loopback address with its own directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executors_app.machine.process import execution_processes, identity
from tests.services import ROOT
from tests.waiting import PATIENCE, eventually

TOKEN = "a-token-of-the-host-itself"
ADDRESS = "127.0.0.2"


class Machine:
    """A host daemon with TLS; it keeps its port over restarts."""

    def __init__(self, home: Path, repositories: Sequence[str], *, address: str = ADDRESS, extra: Sequence[str] = ()):
        self.root = home / "root"
        self._ready_file = home / "ready.json"
        self.token_file = home / "token"
        self._log = home / "host.log"
        self._address, self._port, self._extra = address, 0, tuple(extra)
        self._repositories = [word for one in repositories for word in ("--repositories", one)]
        self._process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self.code = ROOT
        """Whose code it runs: this one, or an older one."""
        home.mkdir(parents=True)
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)

    @property
    def url(self) -> str:
        """Return the URL of the daemon."""
        return str(self.ready["url"])

    @property
    def pid(self) -> int:
        """Return the pid of the daemon."""
        assert self._process is not None
        return self._process.pid

    def config_in(self, data: Path) -> dict[str, Any]:
        """Return ``Executor.config`` for the machine, and write its token file to a control plane's data directory."""
        directory = data / "hosts"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "machine.token").write_text(TOKEN)
        (directory / "machine.token").chmod(0o600)
        return {"url": self.url, "token_file": "machine.token", "fingerprint": self.ready["fingerprint"]}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.root.parent), "PYTHONPATH": str(self.code)}

    def arguments(self) -> list[str]:
        """Return the command line of the daemon."""
        return [
            *(sys.executable, "-P", "-m", "executors_app.agentctl", "host"),
            *("--listen", f"{self._address}:{self._port}"),
            *("--token-file", str(self.token_file)),
            *("--root", str(self.root)),
            *("--ready-file", str(self._ready_file)),
            *("--self-signed", *self._repositories, *self._extra),
        ]

    def start(self) -> None:
        """Start the daemon as a session leader and wait until it listens."""
        self._ready_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.arguments(),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.ready = eventually(self._read_ready_file, describe="the host is ready")
        except BaseException:
            self.stop()
            raise
        self._port = int(self.url.rpartition(":")[2])

    def _read_ready_file(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return json.loads(self._ready_file.read_text()) if self._ready_file.exists() else {}

    def log(self) -> str:
        """Return the daemon's log."""
        return self._log.read_text(errors="replace")

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End the daemon alone, by default with SIGKILL, as when it is out of memory."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def freeze(self) -> None:
        """Stop the daemon's process with SIGSTOP: it accepts connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen daemon continue."""
        os.kill(self.pid, signal.SIGCONT)

    def processes(self, execution_id: str) -> list[identity.ProcessIdentity]:
        """Return all processes of an instance."""
        found = execution_processes.find_processes(execution_id)
        return [*found.agentctl, *found.others]

    def close(self) -> None:
        """End the daemon and everything that it has started."""
        if self._process is not None:
            self.thaw()
        self.stop()
        for state in (self.root / "agentctl").glob("*"):
            identity.kill_all(self.processes(state.name), 10)
