"""Checks of deploy/roll-out, back-up and restore before they change anything, and file ownership afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kandev.databases import EMBEDDED_NAME
from tests.deploy.scripts import run_script
from tests.drills.deployment import Deployment
from tests.environment import DATABASE_URL
from tests.postgresql import binaries

NOBODY = 65534
MAKE_SESSION = """
from django.contrib.auth.models import User
from executors_app.models import AgentProfile, Executor
from sessions_app.models import Repository
from sessions_app.board.services import tasks
user, repository = User.objects.get(), Repository.objects.get()
task = tasks.create_task(user, {"title": "Drill", "team": repository.team, "repository": repository})
profile = AgentProfile.objects.create(name="Demo", agent_type="demo")
tasks.create_session(user, task, profile, Executor.objects.get())
"""
GIVE_UP = """
from sessions_app.models import TaskSession, session_transaction
with session_transaction(TaskSession.objects.get().id) as transaction:
    transaction.move_session("give_up", error_message="Broken.")
"""


def back_up(deployment: Deployment, **environment: str) -> Path:
    """Back up a deployment; return the backup."""
    done = run_script(deployment, "back-up", str(deployment.home / "copies"), **environment)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def files(directory: Path) -> dict[str, tuple[int, int]]:
    """Return inode and size of every file below a directory."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_size) for path in directory.rglob("*") if not path.is_socket()
    }


@pytest.mark.database
def test_restore_under_a_running_server_is_refused(deployment: Deployment) -> None:
    copy = back_up(deployment)
    deployment.serve()
    try:
        session = deployment.start_session("remember walrus")
        before = deployment.rows("SELECT id FROM task_sessions")
        inode = (deployment.data / EMBEDDED_NAME).stat().st_ino if DATABASE_URL not in deployment.env else 0
        refused = run_script(deployment, "restore", str(copy))
        assert refused.returncode == 2
        assert "restore: " in refused.stderr
        assert "stop" in refused.stderr
        assert deployment.rows("SELECT id FROM task_sessions") == before
        assert not inode or (deployment.data / EMBEDDED_NAME).stat().st_ino == inode
        assert deployment.is_ready()
        session.wait_for("WAITING_FOR_INPUT")
    finally:
        deployment.kill_server(signal.SIGTERM)


@pytest.mark.embedded
def test_restore_is_refused_while_a_process_has_the_file_open(deployment: Deployment) -> None:
    copy = back_up(deployment)
    with closing(sqlite3.connect(deployment.data / EMBEDDED_NAME)) as web:
        web.execute("SELECT count(*) FROM tasks").fetchone()
        before = files(deployment.data)
        refused = run_script(deployment, "restore", str(copy))
        assert (refused.returncode, files(deployment.data)) == (2, before)
    assert f"process {os.getpid()} has {deployment.data / EMBEDDED_NAME} open: stop Kandev first" in refused.stderr


@pytest.mark.embedded
def test_restore_refuses_a_backup_of_another_kind_of_database(deployment: Deployment) -> None:
    copy = back_up(deployment)
    (copy / "kandev.sqlite3").rename(copy / "database.dump")
    before = files(deployment.data)
    refused = run_script(deployment, "restore", str(copy))
    assert (refused.returncode, files(deployment.data)) == (2, before)
    assert "has no kandev.sqlite3" in refused.stderr


@pytest.mark.any_database
def test_roll_out_without_the_services_environment_is_refused(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MANAGE": f"{sys.executable} manage.py"}
    script = str(Path(__file__).parents[2] / "deploy" / "roll-out")
    done = subprocess.run([script, "web"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "roll-out: KANDEV_DATA_DIR must be set, as for the service\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.embedded
def test_roll_out_creates_no_new_database(deployment: Deployment) -> None:
    empty = deployment.home / "empty"
    refused = run_script(deployment, "roll-out", "web", KANDEV_DATA_DIR=str(empty), RESTART="false")
    assert refused.returncode == 2
    assert f"there is no database at {empty}/kandev.sqlite3" in refused.stderr
    assert not empty.exists()


@pytest.mark.any_database
def test_roll_out_fails_once_for_sessions_that_it_broke(deployment: Deployment) -> None:
    made = deployment.manage("shell", "-v", "0", "-c", MAKE_SESSION)
    assert made.returncode == 0, made.stderr
    breaking = deployment.home / "restart"
    breaking.write_text(f"#!/bin/sh\nexec {sys.executable} manage.py shell -v 0 -c '{GIVE_UP}'\n")
    breaking.chmod(0o755)
    done = run_script(deployment, "roll-out", "web", RESTART=str(breaking), PATIENCE="5")
    assert done.returncode == 1, done.stderr
    assert "is in FAILED: Broken." in done.stderr
    again = run_script(deployment, "roll-out", "web", RESTART="true", PATIENCE="5")
    assert again.returncode == 0, again.stderr


@pytest.mark.any_database
def test_roll_out_exits_with_status_1_after_a_failed_restart(deployment: Deployment) -> None:
    failing = deployment.home / "restart"
    failing.write_text(f'#!/bin/sh\necho "$1" >> {deployment.home}/order; exit 5\n')
    failing.chmod(0o755)
    done = run_script(deployment, "roll-out", "web", "worker", RESTART=str(failing))
    assert (done.returncode, (deployment.home / "order").read_text()) == (1, "web\n")
    assert "roll-out: web could not be restarted; nothing more was restarted" in done.stderr


@pytest.mark.embedded
def test_sqlite_urls_are_backed_up_and_restored(deployment: Deployment) -> None:
    elsewhere = deployment.home / "the database.sqlite3"
    shutil.move(deployment.data / EMBEDDED_NAME, elsewhere)
    url = {DATABASE_URL: f"sqlite://{str(elsewhere).replace(' ', '%20')}"}
    copy = back_up(deployment, **url)
    with closing(sqlite3.connect(elsewhere)) as file, file:
        file.execute("DELETE FROM repositories")
    restored = run_script(deployment, "restore", str(copy), **url)
    assert restored.returncode == 0, restored.stderr
    with closing(sqlite3.connect(elsewhere)) as file:
        assert file.execute("SELECT count(*) FROM repositories").fetchone() == (1,)
    assert not (deployment.data / EMBEDDED_NAME).exists()


@pytest.mark.any_database
def test_two_backups_within_one_second_are_both_made(deployment: Deployment) -> None:
    tools = deployment.home / "tools"
    tools.mkdir()
    (tools / "date").write_text("#!/bin/sh\necho 20260101T030000Z\n")
    (tools / "date").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    names = [back_up(deployment, PATH=path).name for _ in range(3)]
    assert names == ["20260101T030000Z", "20260101T030000Z-2", "20260101T030000Z-3"]
    assert all((deployment.home / "copies" / name / "complete").exists() for name in names)


@pytest.fixture
def deployment_of_nobody() -> Iterator[Deployment]:
    """Yield a deployment whose files belong to another user, who can reach them."""
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of files")
    setpriv = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    if subprocess.run([*setpriv, sys.executable, "-c", "import django"], capture_output=True, check=False).returncode:
        pytest.skip("no other user can run this Python")
    home = Path(tempfile.mkdtemp(prefix="kandev-owner-", dir="/tmp"))
    home.chmod(0o755)
    deployment = Deployment(home)
    deployment.prepare()
    for path in (deployment.data, *deployment.data.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield deployment
    deployment.close()
    shutil.rmtree(home)


def owners(directory: Path) -> set[int]:
    """Return the owners of the files below a directory."""
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


@pytest.mark.embedded
def test_root_backs_up_and_restores_files_owned_by_the_service(deployment_of_nobody: Deployment) -> None:
    copy = back_up(deployment_of_nobody)
    assert ((copy / "kandev.sqlite3").stat().st_uid, owners(deployment_of_nobody.data)) == (NOBODY, {NOBODY})
    (deployment_of_nobody.data / EMBEDDED_NAME).unlink()
    restored = run_script(deployment_of_nobody, "restore", str(copy))
    assert restored.returncode == 0, restored.stderr
    assert owners(deployment_of_nobody.data) == {NOBODY}
    rolled_out = run_script(deployment_of_nobody, "roll-out", "web", RESTART="true", PATIENCE="5")
    assert rolled_out.returncode == 0, rolled_out.stderr
    assert owners(deployment_of_nobody.data) == {NOBODY}


@pytest.mark.postgresql
def test_restore_removes_tables_created_after_the_backup(deployment: Deployment) -> None:
    copy = back_up(deployment)
    newer = (
        "CREATE TABLE newer (id uuid PRIMARY KEY, task_id uuid NOT NULL REFERENCES tasks (id))",
        "INSERT INTO newer SELECT gen_random_uuid(), id FROM tasks",
    )
    url = deployment.env[DATABASE_URL]
    psql = str((binaries() or Path("/usr/bin")) / "psql")
    for statement in newer:
        subprocess.run([psql, "--quiet", "--no-psqlrc", "--dbname", url, "--command", statement], check=True)
    restored = run_script(deployment, "restore", str(copy))
    assert restored.returncode == 0, restored.stderr
    assert deployment.rows("SELECT to_regclass('newer') AS found") == [{"found": None}]
    assert len(deployment.rows("SELECT id FROM repositories")) == 1


@pytest.mark.postgresql
def test_restore_of_a_damaged_dump_changes_nothing(deployment: Deployment) -> None:
    copy = back_up(deployment)
    dump = copy / "database.dump"
    dump.write_bytes(dump.read_bytes()[:-2000])
    assert run_script(deployment, "restore", str(copy)).returncode != 0
    assert len(deployment.rows("SELECT id FROM repositories")) == 1


@pytest.mark.any_database
def test_restore_with_another_secret_key_is_refused_until_the_loss_is_accepted(deployment: Deployment) -> None:
    started = deployment.manage("recover_sessions")  # whatever starts first writes the value that the key is checked by
    assert started.returncode == 0, started.stderr
    copy = back_up(deployment)
    other = {"KANDEV_SECRET_KEY": "another key " * 5}
    before = deployment.rows("SELECT id FROM repositories")
    refused = run_script(deployment, "restore", str(copy), **other)
    assert refused.returncode == 2
    assert "the secret key is not that of the copy" in refused.stderr
    assert deployment.rows("SELECT id FROM repositories") == before

    accepted = run_script(deployment, "restore", str(copy), KEY_IS_LOST="yes", **other)
    assert accepted.returncode == 0, accepted.stderr
    assert "The present key is the right one from now on" in accepted.stdout


MAKE_REPORT = """
from django.utils import timezone
from sessions_app.hosts.models import Host, HostProcess
now = timezone.now()
host = Host.objects.create(name="build-2", first_seen_at=now)
HostProcess.objects.create(host=host, place="elsewhere", role="worker", release="1", started_at=now, beat_at=now)
"""


@pytest.mark.any_database
def test_restore_is_refused_while_a_process_of_another_host_reports(deployment: Deployment) -> None:
    copy = back_up(deployment)
    made = deployment.manage("shell", "-v", "0", "-c", MAKE_REPORT)
    assert made.returncode == 0, made.stderr
    before = deployment.rows("SELECT name FROM hosts")
    refused = run_script(deployment, "restore", str(copy))
    assert refused.returncode == 2
    assert "restore: Kandev still runs: worker on build-2" in refused.stderr
    assert deployment.rows("SELECT name FROM hosts") == before
