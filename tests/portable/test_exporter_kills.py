"""A killed exporter leaves nothing that the next one does not repair."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from executors_app.machine import crash_points
from tests.drills.deployment import Deployment
from tests.migrated_database import copy_migrated

pytestmark = pytest.mark.embedded
POINTS = sorted(point for point in crash_points.POINT_NAMES if point.startswith("export."))
PAST = """
from django.contrib.auth.models import Group
from executors_app.models import AgentProfile, Executor
from sessions_app.starts.events import ReceiptWritten
from sessions_app.models import Repository, Task, session_transaction
from sessions_app.board.services.tasks import create_session
team = Group.objects.create(name="T")
repository = Repository.objects.create(name="R", team=team, path="/srv/r")
profile = AgentProfile.objects.create(name="P", agent_type="demo")
executor = Executor.objects.create(name="E", runtime="local_standalone")
for title in ("one", "two"):
    task = Task.objects.create(title=title, team=team, repository=repository)
    session = create_session(None, task, profile, executor, prompt="begin", desired_state="stopped")
    for batch in range(3):
        with session_transaction(session.id) as transaction:
            for number in range(250):
                kind, verified = f"{batch} {number}", "none"
                receipt = ReceiptWritten(receipt_id="r", kind=kind, verified=verified, reason="x" * 40)
                transaction.record_event(receipt)
"""
EXPORT = """
from sessions_app.portable.exporter import Exporter
exporter = Exporter("boot")
while exporter.step(final=True): pass
exporter.close()
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return a database with two sessions of 750 events, without any process."""
    made = Deployment(tmp_path_factory.mktemp("export"))
    made.data.mkdir(mode=0o700)
    copy_migrated(made.database)
    made.run_script(PAST)
    return made


def export(deployment: Deployment, **environment: str) -> subprocess.CompletedProcess[str]:
    """Export everything in a separate process; return the completed process."""
    return deployment.manage("shell", "-v", "0", "-c", EXPORT, env=environment)


def lines(path: Path) -> list[str]:
    return [json.loads(line)["kind"] + str(json.loads(line)["seq"]) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_kill_between_two_steps_leaves_no_gap_and_no_duplicate(
    shared: Deployment, tmp_path: Path, point: str, times: int
) -> None:
    folder = tmp_path / "data" / "sessions"
    folder.parent.mkdir(mode=0o700)
    place = {"KANDEV_DATA_DIR": str(folder.parent), "KANDEV_DATABASE_URL": f"sqlite:///{shared.data}/kandev.sqlite3"}
    reached = tmp_path / "reached"
    reached.mkdir()

    killed = export(shared, **place, KANDEV_CRASH_AT=f"{point}:{times}", KANDEV_CRASH_DIR=str(reached))

    assert killed.returncode == -9, killed.stderr
    assert (reached / point).exists()
    again = export(shared, **place)
    assert again.returncode == 0, again.stderr
    logs = sorted(folder.glob("*.messages.jsonl"))
    assert len(logs) == 2
    for log in logs:
        assert lines(log) == [f"receipt{seq}" for seq in range(1, 751)]
        snapshot = json.loads(log.with_name(log.name.replace(".messages.jsonl", ".json")).read_text())
        assert snapshot["last_seq"] == 750
    assert not list(folder.glob("superseded/*"))
