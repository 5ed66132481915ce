"""Freeze a release: databases, data directories and agentctl, which every later version must upgrade.

``scripts/freeze-release`` runs it once, with the code of the release. The wheel is reproducible; ids, keys and times in
the rows are new in each run. Both deployments are killed while they have sessions, as a power failure would.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from executors_app import __version__
from tests import postgresql
from tests.drills.deployment import Deployment
from tests.drills.session_steps import start_idle_session
from tests.environment import DATABASE_URL
from tests.upgrades.wheel import build_wheel

DUMP: Final = "dump.sql"
"""The dump of a PostgreSQL database, inside the archive."""
FACTS: Final = "frozen.json"
"""Where the deployment was, whose path rows and files contain; its keys for the API; its idle session; its tables."""
ROWS: Final = """
import json
from django.apps import apps
from tests.admin.everything import make_set
make_set("frozen")
ours = ("accounts", "executors_app", "notifications", "sessions_app", "workflows")
models = [model for label in ours for model in apps.get_app_config(label).get_models()]
assert all(model._base_manager.exists() for model in models), "every table has a row"
print(json.dumps([model._meta.db_table for model in models]))
"""
"""Adds at least one row to every table, and prints the names of the tables."""
_LEFT_OUT: Final = frozenset({"agentctl.sock", "launch.lock", "lock", "serve.log"})


def archive_of(version: str, database: str) -> Path:
    """Return the archive of a version's deployment on ``sqlite`` or ``postgresql``."""
    return Path(__file__).parent / version / f"{database}.tar.gz"


def freeze(version: str) -> None:
    """Write the wheel and both deployments below ``tests/upgrades/<version>``."""
    folder = Path(__file__).parent / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    build_wheel(folder)
    _freeze_deployment(archive_of(version, "sqlite"))
    os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    _freeze_deployment(archive_of(version, "postgresql"))


def _freeze_deployment(archive: Path) -> None:
    with TemporaryDirectory(prefix="kandev-frozen-") as scratch:
        home = Path(scratch)
        deployment = Deployment(home)
        try:
            deployment.prepare()
            deployment.serve()
            session = start_idle_session(deployment)
            deployment.start_session("work 1").wait_for("WAITING_FOR_INPUT")
            deployment.kill_server()
            tables = json.loads(deployment.run_script(ROWS))
            session.kill_everything()
        finally:
            deployment.close()
        facts = {
            "home": str(home),
            "seeded": deployment.seeded,
            "task": session.task_id,
            "session": session.id,
            "agent_home": session.agent_home.name,
            "tables": tables,
        }
        (home / FACTS).write_text(json.dumps(facts))
        if not isinstance(deployment.database, Path):
            postgresql.dump(deployment.database, home / DUMP)
        _pack(home, archive)


def _pack(home: Path, archive: Path) -> None:
    """Write a directory to an archive, in order and without the owner and the times of its files."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry if Path(entry.name).name not in _LEFT_OUT else None

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, 0) as packed,  # without a name and a time of its own
        tarfile.open(fileobj=packed, mode="w") as entries,
    ):
        for path in sorted(home.iterdir()):
            entries.add(path, path.name, filter=plain)


def main() -> None:
    """Freeze this version."""
    freeze(__version__)


if __name__ == "__main__":
    main()
