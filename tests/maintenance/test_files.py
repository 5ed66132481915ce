"""Journals and homes: only what is proven to be over and read goes, and a half-done removal is finished."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.utils import timezone

from executors_app import cleanup
from executors_app.agentctl.protocol import EXECUTION_MARKER
from executors_app.workspace_store import state_directory_of
from sessions_app.models import Leftover, TaskSession
from sessions_app.services.tasks import delete_session
from tests.maintenance.chores import LONG_AGO, closed_session, do
from tests.supervisor.rows import change, execution_of, running_session
from tests.waiting import eventually

pytestmark = pytest.mark.django_db
EPOCH = "epoch-1"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path


def with_journal(session: TaskSession, lines: int = 3, read: int = 3, epoch: str = EPOCH) -> Path:
    """A state directory as a dead agentctl leaves it, of which ``read`` lines are in the log."""
    execution = change(execution_of(session), journal_epoch=EPOCH, journal_seq=read)
    if session.state == "COMPLETED":
        change(execution, updated_at=LONG_AGO)
    place = state_directory_of(str(execution.id))
    place.create()
    place.lock_file.touch()
    journal = place.path / "journal"
    journal.mkdir()
    (journal / "meta.json").write_bytes(orjson.dumps({"epoch": epoch, "boot_id": "b"}))
    told = [{"seq": seq, "epoch": epoch, "ts": 1.0, "kind": "x"} for seq in range(1, lines + 1)]
    (journal / f"{1:020d}.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in told))
    return place.path


def recently(session: TaskSession) -> None:
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


def without_a_row(session: TaskSession) -> None:
    session.executions.all().delete()


@pytest.mark.parametrize(
    "but",
    [recently, not_stopped, resumable, unread, of_another_epoch, unreadable, without_a_row],
    ids=lambda but: but.__name__,
)
def test_journal_is_kept_while_anything_needs_it(but: Callable[[TaskSession], None]) -> None:
    session = closed_session()
    path = with_journal(session)
    but(session)
    assert do("journals").removed == 0
    assert path.is_dir()


def test_journal_of_a_closed_session_is_deleted_once_logged() -> None:
    session, other = closed_session(), running_session()
    path, alive = with_journal(session), with_journal(other)
    assert do("journals", dry_run=True).removed == 1
    assert path.is_dir()
    assert do("journals").removed == 1
    assert (path.exists(), alive.is_dir()) == (False, True)
    assert list(path.parent.iterdir()) == [alive]


def test_nothing_goes_while_an_agentctl_holds_its_lock() -> None:
    path = with_journal(closed_session())
    with (path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = do("journals")
        assert (done.removed, done.kept) == (0, 1)
        assert "a process still runs" in done.said[0]
    assert do("journals").removed == 1


def test_nothing_goes_while_a_process_of_it_lives() -> None:
    session = closed_session()
    path = with_journal(session)
    marked = {EXECUTION_MARKER: str(execution_of(session).id)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=marked, stdin=subprocess.PIPE) as process:
        eventually(lambda: str(execution_of(session).id) in cleanup.find_living_executions(), describe="it is seen")
        assert do("journals").removed == 0
        process.communicate(b"\n")
    assert do("journals").removed == 1
    assert not path.exists()


def delete(session: TaskSession, *, long_ago: bool = True) -> None:
    session.intents.filter(done_at=None).update(done_at=LONG_AGO)
    delete_session(session)
    if long_ago:
        Leftover.objects.filter(session_id=session.id).update(deleted_at=LONG_AGO)


def test_what_a_deleted_session_leaves_on_disk_goes_after_a_while(data: Path) -> None:
    session = closed_session()
    path, home = with_journal(session, read=0), data / "agent_homes" / str(session.id)
    (home / "deep").mkdir(parents=True)
    delete(session, long_ago=False)
    assert do("journals").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert do("journals").removed == 2
    assert not path.exists() and not home.exists()
    assert Leftover.objects.get().files_gone


def test_a_session_that_is_only_missing_keeps_everything(data: Path) -> None:
    """A database that was restored from an older copy knows nothing of it."""
    home = data / "agent_homes" / str(uuid.uuid4())
    home.mkdir(parents=True)
    path = state_directory_of(str(uuid.uuid4())).path
    path.mkdir(parents=True)
    assert do("journals").removed == 0
    assert home.is_dir() and path.is_dir()


def test_one_that_was_deleted_and_imported_again_keeps_everything() -> None:
    session = closed_session()
    path = with_journal(session, read=0)
    Leftover.objects.create(session_id=session.id, executions=[str(execution_of(session).id)], deleted_at=LONG_AGO)
    assert do("journals").removed == 0
    assert path.is_dir() and not Leftover.objects.exists()


def test_a_removal_that_was_cut_short_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_journal(closed_session())

    def killed(argv: list[str], **_: object) -> None:
        (Path(argv[-1]) / "lock").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            do("journals")
    assert not path.exists() and any(path.parent.iterdir())
    do("journals")
    assert not any(path.parent.iterdir())


def test_one_that_cannot_be_removed_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(with_journal(closed_session()) for _ in range(3))
    plain = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path == paths[0]:
            raise PermissionError(13, "Permission denied")
        return plain(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    done = do("journals")
    assert (done.removed, done.failed, [path.exists() for path in paths]) == (2, True, [True, False, False])


def test_a_link_in_the_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    session, treasure = closed_session(), tmp_path / "treasure"
    path = with_journal(session)
    path.rename(treasure)
    path.symlink_to(treasure)
    assert do("journals").removed == 0
    assert (treasure / "journal").is_dir()


def test_nothing_goes_where_the_deployment_keeps_it_for_ever(settings: Any) -> None:
    settings.KANDEV_JOURNAL_RETENTION = 0
    path = with_journal(closed_session())
    assert do("journals").removed == 0
    assert path.is_dir()
