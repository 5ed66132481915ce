"""The log of closed sessions: it leaves the database only where the portable record has every line of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kandev.metrics import collect_metrics
from sessions_app.live.log_reader import start_stream_at
from sessions_app.models import SessionEvent, TaskSession
from sessions_app.services import database_restore
from sessions_app.services.maintenance import chore_run as working
from tests.maintenance.chores import LONG_AGO, do
from tests.portable.records import export, session_with_a_past
from tests.supervisor.rows import change

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    settings.KANDEV_EVENT_RETENTION = 86400.0
    return tmp_path / "sessions"


@pytest.fixture
def session(folder: Path) -> TaskSession:
    """Closed long ago, with a record that is whole."""
    session = session_with_a_past()
    export(session, folder)
    return change(session, state="COMPLETED", updated_at=LONG_AGO)


def lines(folder: Path, session: TaskSession) -> Path:
    return folder / f"{session.id}.messages.jsonl"


def test_pruning_events_keeps_the_last_line_and_the_pages(folder: Path, session: TaskSession) -> None:
    before, messages = session.events.count(), session.messages.count()
    counted = collect_metrics()["kandev_events_ingested_total"]
    assert do("events", dry_run=True).removed == before - 1
    assert do("events").removed == before - 1
    assert session.events.get().seq == session.last_seq
    assert (session.messages.count(), collect_metrics()["kandev_events_ingested_total"]) == (messages, counted)
    began = start_stream_at(session, 0)
    assert began.snapshot is not None and len(began.snapshot["messages"]) == messages
    assert start_stream_at(session, session.last_seq).snapshot is None
    assert do("events").removed == 0


def test_it_is_not_taken_for_a_restored_database(folder: Path, session: TaskSession) -> None:
    do("events")
    record = lines(folder, session).read_bytes()
    found = database_restore.make_restored_safe()
    assert (found.behind, found.missing) == ({}, [])
    export(session, folder)
    assert lines(folder, session).read_bytes() == record
    assert not (folder / "superseded").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def lost(path: Path) -> None:
    path.unlink()


def changed(path: Path) -> None:
    told = path.read_text().split("\n")
    told[3] = json.dumps({**json.loads(told[3]), "more": {"payload": "another"}})
    path.write_text("\n".join(told))


def without_one(path: Path) -> None:
    told = path.read_text().split("\n")
    path.write_text("\n".join(told[:4] + told[5:]))


def damaged(path: Path) -> None:
    with path.open("a") as file:
        file.write("{\n")


@pytest.mark.parametrize("damage", [cut, lost, changed, without_one, damaged], ids=lambda damage: damage.__name__)
def test_a_log_stays_whose_record_is_no_proof(
    damage: Callable[[Path], None], folder: Path, session: TaskSession
) -> None:
    before = session.events.count()
    damage(lines(folder, session))
    done = do("events")
    assert (done.removed, done.kept, session.events.count()) == (0, 1, before)
    assert str(session.id) in done.said[0]


@pytest.mark.parametrize(
    "fields",
    [{"state": "WAITING_FOR_INPUT"}, {"state": "FAILED"}, {"state": "COMPLETED"}],
    ids=lambda one: one["state"],
)
def test_nothing_goes_by_itself_or_of_a_session_that_may_go_on(
    fields: dict[str, Any], session: TaskSession, settings: Any
) -> None:
    if fields["state"] == "COMPLETED":
        settings.KANDEV_EVENT_RETENTION = 0.0
    change(session, **fields)
    assert do("events").removed == 0


def test_a_run_that_was_cut_short_is_finished_by_the_next(
    folder: Path, session: TaskSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "DELETE_BATCH", 5)
    removed: list[Any] = []
    plain = working.ChoreRun._remove

    def killed(self: working.ChoreRun, rows: Any, ids: Any, before: Any) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.extend(ids)
        plain(self, rows, ids, before)

    monkeypatch.setattr(working.ChoreRun, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        do("events")
    monkeypatch.setattr(working.ChoreRun, "_remove", plain)
    left = session.events.count()
    assert 1 < left < session.last_seq
    assert do("events").removed == left - 1
    assert SessionEvent.objects.get(session=session).seq == session.last_seq
