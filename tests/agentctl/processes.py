"""An agentctl in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from executors_app.agentctl.journal.line_format import journal_directory, read_lines
from executors_app.agentctl.process import identity
from executors_app.client import AgentctlClient
from tests.agentctl.running import TOKEN
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
OBEDIENT = "tests.agentctl.serve_obedient"
REAL = "executors_app.agentctl"


@dataclass(frozen=True)
class Place:
    """Directories of one execution; they survive its agentctl."""

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
        return [sys.executable, "-m", module, "serve", *(f"--{name}={value}" for name, value in named.items())]

    @contextlib.contextmanager
    def agentctl(self, module: str = OBEDIENT, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start agentctl and wait until it is ready; kill it at the end if it still runs."""
        self.ready_file.unlink(missing_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **(env or {})}
        with subprocess.Popen(self.argv(module), env=environment, text=True, stderr=subprocess.PIPE) as process:
            try:
                eventually(lambda: self.ready_file.exists() or process.poll() is not None, 60, "ready")
                yield process
            finally:
                process.kill()

    def ready(self) -> dict[str, Any]:
        ready: dict[str, Any] = orjson.loads(self.ready_file.read_bytes())
        return ready

    def state(self) -> dict[str, Any]:
        """Return what a row stores of its process."""
        process = identity.identify(self.ready()["pid"])
        assert process is not None
        return {"process": process.to_json()}

    def client(self, generation: int = 1) -> AgentctlClient:
        return AgentctlClient(self.ready()["url"], TOKEN, f"execution-of-{self.base.name}", generation=generation)

    def lines(self) -> list[dict[str, Any]]:
        return list(read_lines(journal_directory(self.state_dir)))

    def kinds(self) -> list[str]:
        return [line["kind"] for line in self.lines()]
