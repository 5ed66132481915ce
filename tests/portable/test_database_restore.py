"""A database restored from an older copy while agents continued: it is detected, and nothing runs twice."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from sessions_app.models import Intent, Prompt, TaskSession, session_transaction
from sessions_app.portable import database_restore, export_cursor
from sessions_app.portable.exporter import Exporter
from sessions_app.portable.record import ExporterLock
from tests.drills.deployment import Deployment, Session
from tests.drills.session_steps import wait_until_talking
from tests.portable.records import session_with_history
from tests.raw_events import record_raw_event
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, last_payload, make_session, names, prompt_states, running_session
from tests.waiting import eventually


def back_up(source: Path, target: Path) -> None:
    """Copy the database as docs/operate/backups.md describes."""
    with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
        original.backup(copy)


def restore(deployment: Deployment, copy: Path) -> None:
    """Restore a copy as docs/operate/backups.md describes."""
    database = deployment.data / "kandev.sqlite3"
    for ending in ("-wal", "-shm"):
        database.with_name(database.name + ending).unlink(missing_ok=True)
    shutil.copyfile(copy, copy.with_suffix(".new"))
    copy.with_suffix(".new").replace(database)


def count_prompts(session: Session, text: str) -> int:
    """Return how often the agent received a prompt, by its own memory."""
    content = "".join(path.read_text() for path in session.agent_home.glob("*.jsonl"))
    return content.count(f'"user", "text": "{text}"')


def is_exported(session: Session) -> bool:
    """Return whether the record has the whole log."""
    log = session.deployment.data / "sessions" / f"{session.id}.messages.jsonl"
    return log.exists() and log.read_text().count("\n") == len(session.events())


def session_ahead_of_copy(deployment: Deployment, copy: Path) -> Session:
    """Return a session that is copied in mid-turn with a queued prompt, and then finishes both."""
    session = deployment.start_session("work 10")
    session.wait_for("RUNNING")
    session.prompt("remember walrus")
    wait_until_talking(session)
    back_up(deployment.data / "kandev.sqlite3", copy)
    assert [row["state"] for row in session.prompts()][1] == "queued"
    eventually(
        lambda: session.names().count("session.run.completed") == 2, timeout=60, describe="both turns have completed"
    )
    eventually(lambda: is_exported(session), describe="the portable record is complete")
    return session


@pytest.mark.embedded
def test_restored_database_runs_nothing_twice_and_reads_the_journals(deployment: Deployment, tmp_path: Path) -> None:
    deployment.serve()
    copy = tmp_path / "copy.sqlite3"
    session = session_ahead_of_copy(deployment, copy)
    later = deployment.start_session("work 1")
    eventually(
        lambda: "session.run.completed" in later.names() and is_exported(later),
        timeout=60,
        describe="the later session's turn has completed and is exported",
    )
    log, epoch = session.agent_log(), session.row["epoch"]
    deployment.kill_server()
    restore(deployment, copy)

    deployment.serve()

    eventually(lambda: session.execution["status"] == "stopped", timeout=60, describe="the session is stopped")
    assert session.agent_text() == log
    assert [row["state"] for row in session.prompts()] == ["done", "done"]  # the journal reported it
    assert (count_prompts(session, "work 10"), count_prompts(session, "remember walrus")) == (1, 1)
    assert session.journal().count('"kind":"prompt.accepted"') == 2
    assert session.row["desired_state"] == "stopped"
    assert session.row["epoch"] != epoch
    gaps = [event["payload"] for event in session.events() if event["name"] == "session.journal_gap"]
    assert [gap["reason"] for gap in gaps] == ["database_restored"]
    assert gaps[0]["lost_events"] > 0
    eventually(lambda: is_exported(session), describe="the portable record has the new log")
    assert list((deployment.data / "sessions" / "superseded").glob(f"{session.id}-*/*.messages.jsonl"))

    done = deployment.manage("import_sessions", str(deployment.data / "sessions"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert later.agent_text() == later.agent_log()
    assert later.row["desired_state"] == "stopped"


@pytest.mark.embedded
def test_without_a_journal_the_gap_is_recorded_and_prompts_are_held(deployment: Deployment, tmp_path: Path) -> None:
    deployment.serve()
    copy = tmp_path / "copy.sqlite3"
    session = session_ahead_of_copy(deployment, copy)
    deployment.kill_server()
    session.kill_everything()
    shutil.rmtree(deployment.data / "agentctl")
    restore(deployment, copy)

    deployment.serve()

    eventually(
        lambda: session.execution["status"] == "stopped", timeout=60, describe="the execution is known to be gone"
    )
    assert [row["state"] for row in session.prompts()] == ["held", "held"]
    assert session.names().count("session.journal_gap") == 1
    assert session.names().count("session.run.interrupted") == 1
    assert (count_prompts(session, "work 10"), count_prompts(session, "remember walrus")) == (1, 1)
    assert session.row["state"] == "WAITING_FOR_INPUT"


@pytest.fixture
def data(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path
    return tmp_path


def export_all() -> None:
    exporter = Exporter("boot")
    while exporter.step(final=True):
        pass
    exporter.close()


def delete_newest(session: TaskSession, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the newest events of a session, as in an older copy of the database."""
    newest = session.events.order_by("-seq").values_list("id", flat=True)[:count]
    session.events.filter(id__in=list(newest)).delete()
    change(session, last_seq=session.last_seq - count)
    highest = export_cursor.read_cursor().number - count
    monkeypatch.setattr(export_cursor, "_highest_number", lambda: highest)


@pytest.mark.django_db
def test_nothing_changes_without_a_restore(data: Path) -> None:
    assert database_restore.detect_restore() is None
    session = make_session("begin")
    with session_transaction(session.id) as transaction:
        record_raw_event(transaction, "session.receipt")
    export_all()
    assert database_restore.detect_restore() is None
    assert change(session).desired_state == "running"
    assert list(prompt_states(session).values()) == ["queued"]


@pytest.mark.django_db
def test_restored_work_is_held_dropped_revoked_and_stopped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behind, waiting, done = session_with_history(), make_session("begin"), session_with_history()
    change(done, state="COMPLETED", desired_state="stopped")
    with session_transaction(waiting.id) as transaction:
        record_raw_event(transaction, "session.receipt")
    export_all()
    delete_newest(behind, 3, monkeypatch)
    epochs = set(TaskSession.objects.values_list("epoch", flat=True))
    logs = {session.id: names(session) for session in (waiting, done)}

    found = database_restore.detect_restore()

    assert found is not None
    assert list(found.behind) == [behind.id]
    assert set(TaskSession.objects.values_list("desired_state", flat=True)) == {"stopped"}
    assert list(prompt_states(waiting).values()) == ["held"]
    assert list(Intent.objects.filter(session=waiting).values_list("outcome", flat=True)) == ["database_restored"]
    assert names(behind)[-1] == "session.journal_gap"
    assert last_payload(behind, "session.journal_gap")["lost_events"] == 3
    assert names(waiting) == [*logs[waiting.id], "session.prompt.held"]
    assert names(done) == logs[done.id]
    assert not epochs & set(TaskSession.objects.values_list("epoch", flat=True))
    monkeypatch.undo()
    assert database_restore.detect_restore() is None


@pytest.mark.django_db
def test_crash_during_the_repair_reports_the_gap_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_with_history()
    export_all()
    cursor = export_cursor.read_cursor()
    delete_newest(session, 3, monkeypatch)
    database_restore.detect_restore()
    export_cursor.write_cursor(cursor)  # it died before that

    assert database_restore.detect_restore() is not None

    assert names(session).count("session.journal_gap") == 1


@pytest.mark.django_db
def test_deleted_sessions_are_no_proof_of_a_restored_database(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = make_session("begin"), session_with_history()
    with session_transaction(kept.id) as transaction:
        record_raw_event(transaction, "session.receipt")
    export_all()
    TaskSession.objects.filter(id=gone.id).delete()
    for path in (data / "sessions").glob(f"{gone.id}*"):
        path.unlink()
    assert database_restore.detect_restore() is None
    highest = max(TaskSession.objects.values_list("events__id", flat=True))
    monkeypatch.setattr(export_cursor, "_highest_number", lambda: highest)
    database_restore.detect_restore()
    assert change(kept).desired_state == "running"
    assert not Prompt.objects.filter(state="held").exists()


@pytest.mark.django_db
def test_no_restore_is_detected_during_an_export(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_with_history()
    export_all()
    delete_newest(session, 3, monkeypatch)
    lock = ExporterLock()
    assert lock.take()
    assert database_restore.detect_restore() is None
    with pytest.raises(database_restore.ExporterRunning):
        database_restore.make_restored_safe()
    lock.release()


@pytest.mark.django_db
def test_undetected_restore_can_be_declared(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = make_session("begin")
    call_command("after_restore")
    assert capsys.readouterr().out.startswith("1 session stopped, 1 prompt held; 0 sessions have gaps")
    assert (change(session).desired_state, list(prompt_states(session).values())) == ("stopped", ["held"])
    call_command("after_restore")
    assert capsys.readouterr().out.startswith("0 sessions stopped, 0 prompts held")


@pytest.mark.django_db
def test_queued_prompt_that_the_agent_has_is_not_resent(data: Path) -> None:
    """If the restore was not detected, the journal still proves what the agent has."""
    session, journal = running_session("begin"), Journal()
    (message_id,) = prompt_states(session)
    ingest(session, [*journal.turn_begins(message_id, "begin"), journal.completes(message_id)])
    assert prompt_states(session) == {message_id: "done"}
