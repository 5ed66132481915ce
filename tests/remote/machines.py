"""Another machine: an ``agentctl host`` on a loopback address and in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executors_app.agentctl.process import execution_processes, identity
from tests.services import ROOT
from tests.waiting import eventually

TOKEN = "a-token-of-the-host-itself"
ADDRESS = "127.0.0.2"


class Machine:
    """A host daemon with TLS; its port stays the same over restarts."""

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
        """Where it listens."""
        return str(self.ready["url"])

    @property
    def pid(self) -> int:
        """Of the daemon."""
        assert self._process is not None
        return self._process.pid

    def config_in(self, data: Path) -> dict[str, Any]:
        """``Executor.config`` for it, and the token's file in the data directory of a control plane."""
        directory = data / "hosts"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "machine.token").write_text(TOKEN)
        (directory / "machine.token").chmod(0o600)
        return {"url": self.url, "token_file": "machine.token", "fingerprint": self.ready["fingerprint"]}

    @property
    def environment(self) -> dict[str, str]:
        """What the daemon is started with."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.root.parent), "PYTHONPATH": str(self.code)}

    def arguments(self) -> list[str]:
        """The command line."""
        return [
            *(sys.executable, "-P", "-m", "executors_app.agentctl", "host"),
            *("--listen", f"{self._address}:{self._port}"),
            *("--token-file", str(self.token_file)),
            *("--root", str(self.root)),
            *("--ready-file", str(self._ready_file)),
            *("--self-signed", *self._repositories, *self._extra),
        ]

    def start(self) -> None:
        """Start the daemon, in a session of its own, and wait until it listens."""
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
            self.ready = eventually(self._read_ready_file, timeout=30, describe="the host listens")
        except BaseException:
            self.stop()
            raise
        self._port = int(self.url.rpartition(":")[2])

    def _read_ready_file(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return json.loads(self._ready_file.read_text()) if self._ready_file.exists() else {}

    def log(self) -> str:
        """What the daemon has said."""
        return self._log.read_text(errors="replace")

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End the daemon alone, by default as an out-of-memory killer would."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def freeze(self) -> None:
        """It accepts and says no word."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        os.kill(self.pid, signal.SIGCONT)

    def processes(self, execution_id: str) -> list[identity.ProcessIdentity]:
        """All that lives of an instance."""
        found = execution_processes.find_processes(execution_id)
        return [*found.agentctl, *found.others]

    def close(self) -> None:
        """End the daemon and everything that it has started, by proof."""
        if self._process is not None:
            self.thaw()
        self.stop()
        for state in (self.root / "agentctl").glob("*"):
            identity.kill_all(self.processes(state.name), 10)
