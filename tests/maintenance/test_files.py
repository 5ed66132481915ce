"""Journals and agent homes are deleted only when provably over and read; interrupted removals are completed."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from executors_app import cleanup
from executors_app.repositories.workspace_store import state_directory_of
from executors_app.wire.protocol import EXECUTION_MARKER
from sessions_app.board.services.tasks import delete_session, reopen_task
from sessions_app.models import Leftover, Task, TaskSession
from tests.maintenance.chores import EPOCH, LONG_AGO, closed_session, ended_session, run_chore, with_journal
from tests.supervisor.rows import change, execution_of, make_user, running_session
from tests.waiting import eventually

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path


def updated_recently(session: TaskSession) -> None:
    TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now())


def not_stopped(session: TaskSession) -> None:
    change(execution_of(session), status="error", updated_at=LONG_AGO)


def resumable(session: TaskSession) -> None:
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT")


def unread(session: TaskSession) -> None:
    change(execution_of(session), journal_seq=2, updated_at=LONG_AGO)


def of_another_epoch(session: TaskSession) -> None:
    change(execution_of(session), journal_epoch="epoch-0", updated_at=LONG_AGO)


def unreadable(session: TaskSession) -> None:
    (state_directory_of(str(execution_of(session).id)).path / "journal" / "meta.json").write_text("{")
    change(execution_of(session), journal_seq=2, updated_at=LONG_AGO)


def without_execution(session: TaskSession) -> None:
    session.executions.all().delete()


@pytest.mark.parametrize(
    "but",
    [updated_recently, not_stopped, resumable, unread, of_another_epoch, unreadable, without_execution],
    ids=lambda but: but.__name__,
)
def test_journal_is_kept_while_anything_needs_it(but: Callable[[TaskSession], None]) -> None:
    session = closed_session()
    path = with_journal(session)
    but(session)
    assert run_chore("journals").removed == 0
    assert path.is_dir()


def test_journal_of_a_closed_session_is_deleted_once_logged() -> None:
    session, other = closed_session(), running_session()
    path, alive = with_journal(session), with_journal(other)
    assert run_chore("journals", dry_run=True).removed == 1
    assert path.is_dir()
    assert run_chore("journals").removed == 1
    assert (path.exists(), alive.is_dir()) == (False, True)
    assert list(path.parent.iterdir()) == [alive]


def of_done_task(lines: int = 3, read: int = 3) -> tuple[TaskSession, Path]:
    """Return a session whose task was done long ago, and its state directory."""
    session = ended_session()
    path = with_journal(session, lines=lines, read=read)
    change(execution_of(session), updated_at=LONG_AGO)
    end = {"state": "DONE", "entered_state": "DONE", "entered_at": LONG_AGO}
    Task.objects.filter(id=session.task_id).update(**end)
    return session, path


def test_session_of_a_done_task_loses_only_its_journal() -> None:
    session, path = of_done_task()
    (path / "conversations").mkdir()
    (path / "token").write_text("secret")
    assert run_chore("journals", dry_run=True).removed == 1
    assert (path / "journal").is_dir()
    assert run_chore("journals").removed == 1
    assert sorted(entry.name for entry in path.iterdir()) == ["conversations", "lock", "token"]
    assert list(path.parent.iterdir()) == [path]
    # The next journal begins anew, and the log reports no gap before it.
    execution = execution_of(session)
    assert (execution.journal_epoch, execution.journal_seq) == ("", 0)
    assert run_chore("journals").removed == 0


def test_unread_journal_of_a_done_task_is_kept() -> None:
    _, path = of_done_task(read=2)
    assert run_chore("journals").removed == 0
    assert (path / "journal").is_dir()


def test_journal_of_a_task_reopened_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    session, path = of_done_task()
    is_idle = cleanup.is_idle

    def reopen(execution_id: str, living: frozenset[str]) -> bool:
        reopen_task(session.task, make_user())
        return is_idle(execution_id, living)

    monkeypatch.setattr(cleanup, "is_idle", reopen)
    done = run_chore("journals")
    assert (done.removed, done.kept) == (0, 1)
    assert (path / "journal").is_dir()


def test_killed_removal_of_a_journal_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the rename and before the commit."""
    session, path = of_done_task()
    rename = cleanup.set_journal_aside

    def rename_and_die(execution_id: str) -> Path | None:
        rename(execution_id)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cleanup, "set_journal_aside", rename_and_die)
        with pytest.raises(KeyboardInterrupt):
            run_chore("journals")
    assert execution_of(session).journal_epoch == EPOCH and not (path / "journal").exists()
    run_chore("journals")
    execution = execution_of(session)
    assert (execution.journal_epoch, execution.journal_seq) == ("", 0)
    assert list(path.parent.iterdir()) == [path]


def test_empty_journal_does_not_reset_the_one_of_another_host() -> None:
    """A launch here has failed, and another host has the journal."""
    session, path = of_done_task()
    for file in (path / "journal").iterdir():
        file.unlink()
    assert run_chore("journals").removed == 0
    execution = execution_of(session)
    assert (execution.journal_epoch, execution.journal_seq) == (EPOCH, 3)


def test_files_are_kept_while_agentctl_holds_its_lock() -> None:
    path = with_journal(closed_session())
    with (path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_chore("journals")
        assert (done.removed, done.kept) == (0, 1)
        assert "a process still runs" in done.said[0]
    assert run_chore("journals").removed == 1


def test_files_are_kept_while_a_process_lives() -> None:
    session = closed_session()
    path = with_journal(session)
    marked = {EXECUTION_MARKER: str(execution_of(session).id)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=marked, stdin=subprocess.PIPE) as process:
        eventually(
            lambda: str(execution_of(session).id) in cleanup.find_living_executions(),
            describe="the agent of the session is found",
        )
        assert run_chore("journals").removed == 0
        process.communicate(b"\n")
    assert run_chore("journals").removed == 1
    assert not path.exists()


def delete(session: TaskSession, *, long_ago: bool = True) -> None:
    session.intents.filter(done_at=None).update(done_at=LONG_AGO)
    delete_session(session)
    if long_ago:
        Leftover.objects.filter(session_id=session.id).update(deleted_at=LONG_AGO)


def test_files_of_a_deleted_session_are_deleted_later(data: Path) -> None:
    session = closed_session()
    path, home = with_journal(session, read=0), data / "agent_homes" / str(session.id)
    (home / "deep").mkdir(parents=True)
    delete(session, long_ago=False)
    assert run_chore("journals").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert run_chore("journals").removed == 2
    assert not path.exists() and not home.exists()
    assert Leftover.objects.get().files_gone


def test_session_missing_from_the_database_keeps_its_files(data: Path) -> None:
    """A database restored from an older copy does not know the session."""
    home = data / "agent_homes" / str(uuid.uuid4())
    home.mkdir(parents=True)
    path = state_directory_of(str(uuid.uuid4())).path
    path.mkdir(parents=True)
    assert run_chore("journals").removed == 0
    assert home.is_dir() and path.is_dir()


def test_reimported_session_keeps_its_files() -> None:
    session = closed_session()
    path = with_journal(session, read=0)
    Leftover.objects.create(session_id=session.id, executions=[str(execution_of(session).id)], deleted_at=LONG_AGO)
    assert run_chore("journals").removed == 0
    assert path.is_dir() and not Leftover.objects.exists()


def test_interrupted_removal_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_journal(closed_session())

    def killed(argv: list[str], **_: object) -> None:
        (Path(argv[-1]) / "lock").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            run_chore("journals")
    assert not path.exists() and any(path.parent.iterdir())
    run_chore("journals")
    assert not any(path.parent.iterdir())


def test_failed_removal_does_not_stop_others(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(with_journal(closed_session()) for _ in range(3))
    plain = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path == paths[0]:
            raise PermissionError(13, "Permission denied")
        return plain(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    done = run_chore("journals")
    assert (done.removed, done.failed, [path.exists() for path in paths]) == (2, True, [True, False, False])


def test_link_in_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    session, treasure = closed_session(), tmp_path / "treasure"
    path = with_journal(session)
    path.rename(treasure)
    path.symlink_to(treasure)
    assert run_chore("journals").removed == 0
    assert (treasure / "journal").is_dir()


def test_unlimited_retention_deletes_nothing(settings: Any) -> None:
    settings.KANDEV_JOURNAL_RETENTION = 0
    path = with_journal(closed_session())
    assert run_chore("journals").removed == 0
    assert path.is_dir()
