"""The exporter follows the logs: no line is missing or duplicated, whenever and however it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.board.services.tasks import delete_session
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.models import TaskSession, WaitKey, session_transaction
from sessions_app.portable.exporter import Exporter
from sessions_app.portable.record import SessionFiles, forget_record
from sessions_app.portable.rules.lines import line_to_event
from tests.portable.records import events_of, log_of, session_with_history
from tests.raw_events import record_raw_event
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, execution_of, running_session
from tests.waiting import eventually_async

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    """Return the directory of this test's records."""
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path / "sessions"


def export_all(exporter: Exporter | None = None) -> None:
    """Export everything, with a new exporter unless one is given."""
    one = exporter or Exporter("boot")
    while one.step(final=True):
        pass
    if exporter is None:
        one.close()


def write_receipts(session: TaskSession, *words: str) -> None:
    with session_transaction(session.id) as transaction:
        for word in words:
            record_raw_event(transaction, "session.receipt", kind=word)


def exported_lines(folder: Path, session: TaskSession) -> list[tuple[Any, ...]]:
    """Return the log according to the record."""
    events = map(line_to_event, log_of(folder, session))
    return [(one.seq, one.name, one.payload, one.at, one.once) for one in events]


def test_record_has_every_event_once_and_in_order(folder: Path) -> None:
    sessions = [session_with_history(), running_session()]
    write_receipts(sessions[1], "one", "two")
    export_all()
    write_receipts(sessions[1], *map(str, range(1200)))
    export_all()
    for session in sessions:
        assert exported_lines(folder, session) == events_of(session)
        assert (folder / f"{session.id}.json").exists()


def test_sessions_that_keep_growing_are_exported_in_turn(folder: Path) -> None:
    sessions, exporter = [running_session() for _ in range(3)], Exporter("boot")
    for session in sessions:
        write_receipts(session, "first")
    export_all(exporter)
    for _ in sessions:
        for session in sessions:
            write_receipts(session, "more")
        exporter.step()
    exporter.close()
    assert sorted(len(exported_lines(folder, session)) for session in sessions) == [2, 3, 4]


def test_snapshot_conforms_to_the_format(folder: Path) -> None:
    session = session_with_history()
    export_all()
    snapshot = json.loads((folder / f"{session.id}.json").read_bytes())
    run = session.runs.latest("started_at")
    assert snapshot["id"] == str(session.id)
    assert snapshot["title"] == "Faster parser"
    assert snapshot["working_dir"] == "/srv/repository"
    assert snapshot["provider"] == {"type": "demo", "model": ""}
    assert snapshot["last_seq"] == session.last_seq
    assert (snapshot["run"]["run_id"], snapshot["run"]["wait"]) == (str(run.id), None)
    assert snapshot["recovery"] == {"last_boot_seen": "boot", "interruption": None}


def test_record_is_private_and_contains_no_secret(folder: Path) -> None:
    session = session_with_history()
    change(execution_of(session), resume_token="s3cret-1", auth_token="s3cret-2", rejected_resume_token="s3cret-3")
    profile = session.agent_profile
    profile.env, profile.args, profile.mcp_servers = {"KEY": "s3cret-4"}, ["s3cret-5"], [{"name": "s3cret-6"}]
    profile.save()
    token = WaitKey.objects.filter(session=session).first()
    assert token is not None
    export_all()

    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name.partition(".")[2] for path in files} >= {"json", "messages.jsonl", "tokens.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    everything = b"".join(path.read_bytes() for path in files)
    assert token.secret_hash.encode() in everything
    assert (token.secret() or "").encode() not in everything
    assert b"s3cret" not in everything


def test_world_readable_directory_is_made_private(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    export_all()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


TORN = [b'{"seq": 9', b"\0" * 300, b'{"seq": 99}\n', b"\n", b"[" * 3000 + b"\n", b"\xff\xfe" * 40_000 + b"\n"]


@pytest.mark.parametrize("torn", TORN)
def test_torn_end_is_truncated_and_rewritten(folder: Path, torn: bytes) -> None:
    session = session_with_history()
    export_all()
    log = folder / f"{session.id}.messages.jsonl"
    whole = log.read_bytes()
    cut = whole[: whole.rindex(b"\n", 0, len(whole) - 300) + 1]
    log.write_bytes(cut + torn)
    write_receipts(session, "more")
    export_all()
    assert log.read_bytes().startswith(whole)
    assert exported_lines(folder, session) == events_of(session)


def test_interrupted_export_continues_after_its_last_seq(folder: Path) -> None:
    """Random logs, exporters and truncated files: in the end the record always equals the log."""
    for seed in range(6):
        dice = random.Random(seed)
        sessions = [running_session() for _ in range(3)]
        exporter = Exporter("boot")
        for _ in range(25):
            session = dice.choice(sessions)
            write_receipts(
                session, *(chr(dice.randrange(0x20, 0xD7FF)) * dice.randrange(90) for _ in range(dice.randrange(1, 9)))
            )
            if dice.random() < 0.5:
                exporter.step()
            if dice.random() < 0.2:
                exporter.close()
                exporter = Exporter("boot")
                log = folder / f"{session.id}.messages.jsonl"
                if log.exists():
                    os.truncate(log, dice.randrange(log.stat().st_size + 1))
                    write_receipts(session, "so that somebody looks")
            if dice.random() < 0.1:
                (folder / ".exported").unlink(missing_ok=True)
        export_all(exporter)
        exporter.close()
        for session in sessions:
            assert exported_lines(folder, session) == events_of(session), f"seed {seed}"


def test_only_one_of_two_exporters_writes(folder: Path) -> None:
    session = session_with_history()
    first, second = Exporter("first"), Exporter("second")
    first.step(final=True)
    write_receipts(session, "more")
    assert second.step(final=True) is False
    assert len(exported_lines(folder, session)) == session.last_seq
    first.close()
    export_all(second)
    assert exported_lines(folder, session) == events_of(session)
    second.close()


@pytest.mark.django_db(transaction=True)
def test_only_one_of_two_hosts_exports(tmp_path: Path, settings: Any) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("an embedded database has one host")
    session = session_with_history()
    events_of_session = events_of(session)
    threads = {name: DatabaseThread(name) for name in ("one", "two")}
    exporters = {name: Exporter(name) for name in threads}

    async def step(name: str) -> None:
        settings.KANDEV_DATA_DIR = tmp_path / name
        await threads[name](exporters[name].step, final=True)

    async def race() -> None:
        assert await exports_all("one")
        await step("two")
        assert not list((tmp_path / "two").rglob("*.jsonl"))
        threads["one"].close()  # its lead ends with its connection, once the server has noticed
        await eventually_async(lambda: exports_all("two"), describe="the other supervisor exports")

    async def exports_all(name: str) -> bool:
        await step(name)
        folder = tmp_path / name / "sessions"
        return bool(list(folder.glob("*.jsonl"))) and exported_lines(folder, session) == events_of_session

    asyncio.run(race())
    threads["two"].close()


def test_unwritable_session_is_reported_once_and_stops_no_other(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_app.portable.exporter.RETRY_AFTER", 0.0)
    bad, good = session_with_history(), running_session()
    obstacle = folder / f"{bad.id}.messages.jsonl"
    obstacle.mkdir(parents=True)
    exporter = Exporter("boot")
    with caplog.at_level(logging.WARNING):
        for word in ("one", "two", "three"):
            write_receipts(bad, word)
            write_receipts(good, word)
            exporter.step(final=True)
    assert exported_lines(folder, good) == events_of(good)
    assert len([record for record in caplog.records if str(bad.id) in record.getMessage()]) == 1

    obstacle.rmdir()
    export_all(exporter)
    assert exported_lines(folder, bad) == events_of(bad)
    exporter.close()


def test_unwritten_session_is_remembered_over_a_restart(folder: Path) -> None:
    bad = session_with_history()
    obstacle = folder / f"{bad.id}.messages.jsonl"
    obstacle.mkdir(parents=True)
    first = Exporter("boot")
    first.step(final=True)
    first.close()
    obstacle.rmdir()
    export_all()
    assert exported_lines(folder, bad) == events_of(bad)


def test_unusable_directory_is_reported_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("in the way")
    exporter = Exporter("boot")
    with caplog.at_level(logging.WARNING):
        assert [exporter.step(), exporter.step()] == [False, False]
    assert len(caplog.records) == 1
    folder.unlink()
    session = session_with_history()
    export_all(exporter)
    assert exported_lines(folder, session) == events_of(session)
    exporter.close()


def test_full_disk_leaves_the_record_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_with_history()
    export_all()
    log = folder / f"{session.id}.messages.jsonl"
    before, write = log.read_bytes(), os.pwrite

    def write_partly(descriptor: int, data: memoryview, offset: int) -> int:
        if offset > len(before) + 10:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:20], offset)

    monkeypatch.setattr(os, "pwrite", write_partly)
    write_receipts(session, "more")
    exporter = Exporter("boot")
    exporter.step()
    assert log.read_bytes() == before
    exporter.close()
    monkeypatch.setattr(os, "pwrite", write)
    export_all()
    assert exported_lines(folder, session) == events_of(session)


def test_cost_depends_on_what_has_changed(folder: Path) -> None:
    def count_queries_of_change(session: TaskSession) -> int:
        write_receipts(session, "more")
        with CaptureQueriesContext(connection) as seen:
            export_all(exporter)
        return len(seen)

    sessions = [running_session()]
    exporter = Exporter("boot")
    export_all(exporter)
    alone = count_queries_of_change(sessions[0])
    for one in [running_session() for _ in range(20)]:
        write_receipts(one, *map(str, range(50)))
    export_all(exporter)
    assert count_queries_of_change(sessions[0]) <= alone
    with CaptureQueriesContext(connection) as seen:
        exporter.step()
    assert len(seen) <= 2
    exporter.close()


def test_record_of_a_deleted_session_is_deleted(folder: Path, django_capture_on_commit_callbacks: Any) -> None:
    session = session_with_history()
    export_all()
    change(execution_of(session), status="stopped")
    with django_capture_on_commit_callbacks(execute=True):
        delete_session(TaskSession.objects.get(id=session.id))
    assert not list(folder.glob(f"{session.id}*"))


def test_session_deleted_during_its_export_leaves_nothing(folder: Path) -> None:
    session = session_with_history()
    exporter = Exporter("boot")
    exporter.step()
    write_receipts(session, "more")
    exporter.step()
    TaskSession.objects.filter(id=session.id).delete()
    export_all(exporter)
    assert not list(folder.glob(f"{session.id}*"))
    exporter.close()


def test_record_of_another_log_is_set_aside(folder: Path) -> None:
    session = session_with_history()
    export_all()
    other = (folder / f"{session.id}.messages.jsonl").read_bytes()
    session.events.order_by("-seq").first().delete()  # type: ignore[union-attr]
    TaskSession.objects.filter(id=session.id).update(last_seq=session.last_seq - 1)
    write_receipts(session, "another end")
    export_all()
    assert exported_lines(folder, session) == events_of(session)
    kept = list((folder / "superseded").glob("*/*.messages.jsonl"))
    assert [path.read_bytes() for path in kept] == [other]
    shutil.rmtree(folder)


def test_set_aside_record_is_deleted_with_its_session(folder: Path) -> None:
    gone, kept = session_with_history(), session_with_history()
    for session in (gone, kept):
        export_all()
        SessionFiles(folder, session.id).set_aside()
        SessionFiles(folder, session.id).set_aside()
    forget_record(gone.id)
    left = {path.name.rpartition("-")[0] for path in (folder / "superseded").iterdir()}
    assert left == {str(kept.id)}
    shutil.rmtree(folder)


def test_growing_text_is_exported_byte_for_byte(folder: Path) -> None:
    session, journal = running_session(), Journal()
    for at in range(0, 3000, 300):
        ingest(session, journal.says(*(f"{number}ü\u2029" for number in range(at, at + 300))))
        export_all()
    pieces = [line.get("content", "") + line.get("append", "") for line in log_of(folder, session)]
    assert "".join(pieces) == "".join(f"{number}ü\u2029" for number in range(3000))
