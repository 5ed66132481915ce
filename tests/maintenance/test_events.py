"""Events of closed sessions are deleted only if the portable record has every line of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kandev.metrics import collect_metrics
from sessions_app.maintenance import chore_run
from sessions_app.models import SessionEvent, TaskSession
from sessions_app.portable import database_restore
from sessions_app.stream.live.stream_start import start_stream_at
from tests.maintenance.chores import LONG_AGO, run_chore
from tests.portable.records import export, session_with_history
from tests.supervisor.rows import change

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    settings.KANDEV_EVENT_RETENTION = 86400.0
    return tmp_path / "sessions"


@pytest.fixture
def session(folder: Path) -> TaskSession:
    """Return a session closed long ago, with a complete record."""
    session = session_with_history()
    export(session, folder)
    return change(session, state="COMPLETED", updated_at=LONG_AGO)


def lines(folder: Path, session: TaskSession) -> Path:
    return folder / f"{session.id}.messages.jsonl"


def test_pruning_events_keeps_the_last_line_and_the_pages(folder: Path, session: TaskSession) -> None:
    before, messages = session.events.count(), session.messages.count()
    counted = collect_metrics()["kandev_events_ingested_total"]
    assert run_chore("events", dry_run=True).removed == before - 1
    assert run_chore("events").removed == before - 1
    assert session.events.get().seq == session.last_seq
    assert (session.messages.count(), collect_metrics()["kandev_events_ingested_total"]) == (messages, counted)
    began = start_stream_at(session, 0)
    assert began.snapshot is not None and len(began.snapshot["messages"]) == messages
    assert start_stream_at(session, session.last_seq).snapshot is None
    assert run_chore("events").removed == 0


def test_pruned_log_does_not_look_like_a_restored_database(folder: Path, session: TaskSession) -> None:
    run_chore("events")
    record = lines(folder, session).read_bytes()
    found = database_restore.make_restored_safe()
    assert (found.behind, found.missing) == ({}, [])
    export(session, folder)
    assert lines(folder, session).read_bytes() == record
    assert not (folder / "superseded").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def delete(path: Path) -> None:
    path.unlink()


def change_payload(path: Path) -> None:
    lines = path.read_text().split("\n")
    lines[3] = json.dumps({**json.loads(lines[3]), "more": {"payload": "another"}})
    path.write_text("\n".join(lines))


def remove_line(path: Path) -> None:
    lines = path.read_text().split("\n")
    path.write_text("\n".join(lines[:4] + lines[5:]))


def append_garbage(path: Path) -> None:
    with path.open("a") as file:
        file.write("{\n")


@pytest.mark.parametrize(
    "damage", [truncate, delete, change_payload, remove_line, append_garbage], ids=lambda damage: damage.__name__
)
def test_log_with_an_incomplete_record_is_kept(
    damage: Callable[[Path], None], folder: Path, session: TaskSession
) -> None:
    before = session.events.count()
    damage(lines(folder, session))
    done = run_chore("events")
    assert (done.removed, done.kept, session.events.count()) == (0, 1, before)
    assert str(session.id) in done.said[0]


@pytest.mark.parametrize(
    "fields",
    [{"state": "WAITING_FOR_INPUT"}, {"state": "FAILED"}, {"state": "COMPLETED"}],
    ids=lambda one: one["state"],
)
def test_log_of_a_session_that_may_continue_is_kept(
    fields: dict[str, Any], session: TaskSession, settings: Any
) -> None:
    if fields["state"] == "COMPLETED":
        settings.KANDEV_EVENT_RETENTION = 0.0
    change(session, **fields)
    assert run_chore("events").removed == 0


def test_interrupted_run_is_completed_by_the_next(
    folder: Path, session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chore_run, "DELETE_BATCH", 5)
    removed: list[Any] = []
    plain = chore_run.ChoreRun._remove

    def killed(self: chore_run.ChoreRun, rows: Any, ids: Any, before: Any) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.extend(ids)
        plain(self, rows, ids, before)

    monkeypatch.setattr(chore_run.ChoreRun, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        run_chore("events")
    monkeypatch.setattr(chore_run.ChoreRun, "_remove", plain)
    left = session.events.count()
    assert 1 < left < session.last_seq
    assert run_chore("events").removed == left - 1
    assert SessionEvent.objects.get(session=session).seq == session.last_seq
