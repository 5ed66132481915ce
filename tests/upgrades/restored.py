"""A frozen deployment in a new place, and the agentctl of its release in an environment of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from executors_app.machine.process import execution_processes, identity
from executors_app.machine.storage import state_directory
from executors_app.wire.protocol import EXECUTION_MARKER
from executors_app.wire.socket_urls import unix_url
from tests import databases, postgresql
from tests.drills.deployment import Deployment, Session
from tests.upgrades.freeze import DUMP, FACTS, archive_of
from tests.upgrades.wheel import UV
from tests.waiting import eventually

ADAPT: Final = """
from executors_app.models import AgentProfile, ExecutorRunning
for profile in AgentProfile.objects.filter(name="drill"):
    profile.env = {{name: value.replace({old!r}, {new!r}) for name, value in profile.env.items()}}
    profile.save()
for row in ExecutorRunning.objects.filter(session__agent_profile__name="drill"):
    row.host_id, row.agentctl_url = "", ""
    row.state = {{name: value for name, value in row.state.items() if name == "launch"}}
    row.save()
"""
"""Forget the machine of the frozen deployment: its path in encrypted columns, its host, processes and sockets."""


class RestoredDeployment(Deployment):
    """A deployment of an earlier release, from its archive."""

    def __init__(self, home: Path, version: str):
        super().__init__(home)
        database = "postgresql" if databases.on_postgresql() else "sqlite"
        with tarfile.open(archive_of(version, database)) as archive:
            archive.extractall(home, filter="tar")
        facts = json.loads((home / FACTS).read_text())
        self.old_home, self.seeded, self.tables = str(facts["home"]), facts["seeded"], facts["tables"]
        self.session = Session(self, facts["task"], facts["session"], home / facts["agent_home"])
        self._move_files()
        if isinstance(self.database, Path):
            self._move_rows(self.database)
        else:
            postgresql.restore(home / DUMP, self.database)

    def _move_files(self) -> None:
        """Replace the path of the frozen deployment in all files but the SQLite database."""
        old, new = self.old_home.encode(), str(self.home).encode()
        for path in self.home.rglob("*"):
            if path.is_file() and not path.is_symlink() and ".sqlite3" not in path.name:
                content = path.read_bytes()
                if old in content:
                    path.write_bytes(content.replace(old, new))

    def _move_rows(self, database: Path) -> None:
        with closing(sqlite3.connect(database)) as file, file:
            tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                for _, column, kind, *_ in file.execute(f"PRAGMA table_info({table})").fetchall():
                    if kind.lower().startswith(("text", "varchar")):
                        statement = f'UPDATE {table} SET "{column}" = replace("{column}", ?, ?) WHERE "{column}" LIKE ?'  # noqa: S608
                        file.execute(statement, (self.old_home, str(self.home), f"%{self.old_home}%"))

    def count_rows(self) -> dict[str, int]:
        """Return how many rows each table has that the release had."""
        return {name: self.rows(f"SELECT COUNT(*) AS number FROM {name}")[0]["number"] for name in self.tables}  # noqa: S608

    def migrate(self) -> None:
        """Migrate with the present code, then adapt the rows to this machine."""
        done = self.manage("migrate", "--verbosity", "0")
        assert done.returncode == 0, done.stderr
        self.run_script(ADAPT.format(old=self.old_home, new=str(self.home)))


class FrozenAgentctl:
    """The agentctl of a release: its wheel in a virtual environment without the project."""

    def __init__(self, wheel: Path, environment: Path):
        self.python = environment / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        command: list[str | Path] = [
            UV,
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-index",
            "--no-deps",
            "--python",
            self.python,
        ]
        subprocess.run([*command, wheel], check=True)
        # Offline, its dependencies are those of this environment, whose versions may be newer than the pinned ones.
        site = self._run("import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def dependencies(self) -> dict[str, str]:
        """Return the available version of each package that the wheel requires; it fails if one is missing."""
        found: dict[str, str] = json.loads(self._run(DEPENDENCIES))
        return found

    def location(self) -> str:
        """Return where its package is imported from."""
        return self._run("import executors_app.agentctl; print(executors_app.agentctl.__path__[0])")

    def _run(self, code: str) -> str:
        done = subprocess.run([self.python, "-c", code], cwd="/", check=True, capture_output=True, text=True)
        return done.stdout.strip()

    @contextmanager
    def serving(self, session: Session) -> Iterator[int]:
        """Run it for a session on its state directory; yield its pid once it listens."""
        deployment, execution = session.deployment, session.execution
        directory = state_directory(deployment.data, session.execution_id)
        directory.ready_file.unlink(missing_ok=True)
        options = {
            "workspace": execution["worktree_path"],
            "state-dir": directory.path,
            "session-id": session.id,
            "execution-id": session.execution_id,
            "token-file": directory.token_file,
            "ready-file": directory.ready_file,
            "listen": unix_url(directory.socket),
        }
        # Each value is a word of its own, by which the control plane recognises the process.
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command: list[str | Path] = [self.python, "-P", "-m", execution_processes.AGENTCTL_MODULE, "serve", *words]
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", EXECUTION_MARKER: session.execution_id}
        with directory.log_file.open("ab") as log:
            process = subprocess.Popen(command, cwd="/", env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(directory.ready_file.exists, timeout=60, describe=f"it listens, see {directory.log_file}")
            yield process.pid
        finally:
            identity.kill_all(identity.find_marked(session.execution_id), 10)
            process.wait(60)


DEPENDENCIES: Final = """
import json
from importlib import metadata
required = [requirement.split("==")[0] for requirement in metadata.requires("kandev-agentctl")]
print(json.dumps({name: metadata.version(name) for name in required}))
"""
