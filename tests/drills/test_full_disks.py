"""Full disks: what was acknowledged stays, the error says what to do, and with free space everything continues."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.drills.deployment import ROOT, ApiError, Deployment, Session
from tests.environment import DATABASE_URL
from tests.waiting import eventually

FLOODING = ("--behaviour", "floods", "--count", "6000", "--size", "2000")
"""13 MB of journal: more than the drill's disk holds, so acknowledged segments have to be deleted."""


@contextmanager
def small_disk(where: Path, mebibytes: int) -> Iterator[Path]:
    """Yield a file system of that size at ``where``; skip the test if it cannot be mounted."""
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", str(where)]
    try:
        mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path) -> Path:
    """Use up all space of a disk."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return filler


def flooding(deployment: Deployment, prompt: str) -> Session:
    """Return a session whose agent says more than the disk can hold."""
    command = ["-m", "tests.support.faulty_agent", *FLOODING]
    profile = {"agent_type": "custom_acp", "command": [_python(), *command], "env": {"PYTHONPATH": str(ROOT)}}
    return deployment.start_session(prompt, profile)


def _python() -> str:
    return str(ROOT / ".venv" / "bin" / "python")


@pytest.mark.any_database
def test_full_disk_of_agentctl_stops_the_turn_until_space_is_free(deployment: Deployment) -> None:
    with small_disk(deployment.data / "agentctl", 8) as disk:
        deployment.serve()
        session = flooding(deployment, "")
        session.wait_for("WAITING_FOR_INPUT")
        filler = fill(disk)
        assert filler.stat().st_size > 1 << 20

        session.prompt("flood")

        failed = eventually(
            lambda: [one["payload"] for one in session.events() if one["name"] == "session.run.failed"],
            timeout=60,
            describe="the turn has failed",
        )[0]
        assert failed["error_code"] == "disk_full"
        assert "Free some space" in failed["error_message"]
        status = eventually(
            lambda: (shown := session.status())["error_code"] == "disk_full" and shown,
            describe="the full disk is shown",
        )
        assert "Free some space" in status["error_message"]
        text = session.agent_text()

        filler.unlink()

        eventually(lambda: session.status()["error_code"] == "", timeout=60, describe="the error has gone")
        assert session.agent_text().startswith(text)
        session.prompt("flood again")
        eventually(
            lambda: session.names().count("session.run.started") == 2,
            timeout=60,
            describe="the second turn has started",
        )
        assert session.agent_log().startswith(session.agent_text()[: len(text)])
        assert {"session.journal_gap", "session.journal_skipped"}.isdisjoint(session.names())
        deployment.close()


class DatabaseOnDisk(Deployment):
    """A Kandev whose database, and nothing else, is on ``disk``."""

    def __init__(self, home: Path, disk: Path):
        super().__init__(home)
        self.disk = disk
        self.env[DATABASE_URL] = f"sqlite://{disk / 'kandev.sqlite3'}"

    @property
    def database(self) -> Path:
        return self.disk / "kandev.sqlite3"


@pytest.fixture
def database_on_disk(tmp_path: Path) -> Iterator[DatabaseOnDisk]:
    """Yield a prepared deployment that is not yet running; its disk has 8 MiB."""
    with small_disk(tmp_path / "database", 8) as disk:
        made = DatabaseOnDisk(tmp_path, disk)
        made.prepare()
        try:
            yield made
        finally:
            made.close()


@pytest.mark.embedded
def test_log_catches_up_after_a_full_database_disk(
    database_on_disk: DatabaseOnDisk,
) -> None:
    deployment = database_on_disk
    deployment.serve()
    session = deployment.start_session("work 16 at 50")
    session.wait_for("RUNNING")
    filler = fill(deployment.disk)

    eventually(
        lambda: "the database does not accept events" in deployment.log(),
        describe="the log says that events cannot be stored",
    )
    with pytest.raises(ApiError) as refused:
        session.prompt("and then?")
    assert refused.value.status == 503
    assert '"database_full"' in refused.value.body
    assert session.status()["session_id"] == session.id  # reading still works
    eventually(lambda: "tick 800\n" in session.agent_log(), timeout=60, describe="the agent keeps writing")

    filler.unlink()

    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the event log has caught up")
    assert session.agent_text() == session.agent_log()
    assert {"session.journal_gap", "session.journal_skipped"}.isdisjoint(session.names())
    assert session.names().count("session.run.interrupted") == 0
    eventually(deployment.is_ready, describe="/readyz answers 200")
