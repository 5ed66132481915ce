"""``manage.py recover_sessions``: its output, its exit status, and refusals before anything is written."""

from __future__ import annotations

import json
import sqlite3
import uuid
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from executors_app.wire.executions import Observation, Observed
from sessions_app.management.commands.recover_sessions import COLUMNS, Command
from sessions_app.models import RecoverySweep, Supervisor, SweepOutcome
from tests.databases import new_database
from tests.supervisor import database_dump
from tests.supervisor.commands import environment, manage
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import UNKNOWN, RecordingRuntime, lost_session
from tests.supervisor.rows import NO_LEASE, change, execution_of, fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)

DOCUMENT = {
    "sweep_id", "boot_id", "trigger", "dry_run", "started_at", "duration_ms", "examined", "outcomes", "sessions",
}  # fmt: skip
OUTCOMES = {"reattached", "resumed", "loaded", "injected", "fresh", "workspace_only", "failed", "skipped"}
SESSION = {
    "session_id", "task_id", "runtime", "observed", "rule", "executor_status", "session_state", "agent_action",
    "strategy", "receipt_kind", "reason", "error_message", "duration_ms",
}  # fmt: skip


def recover_sessions(*flags: str) -> dict[str, Any]:
    """Return the JSON document of a sweep."""
    out = StringIO()
    call_command("recover_sessions", "--json", *flags, stdout=out)
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


# --- output ---


def test_document_has_the_documented_shape(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    document = recover_sessions()
    assert set(document) >= DOCUMENT
    assert set(document["outcomes"]) == OUTCOMES
    (row,) = document["sessions"]
    assert set(row) >= SESSION
    assert (document["trigger"], document["dry_run"], document["examined"]) == ("command", False, 1)
    assert (row["session_id"], row["task_id"]) == (str(session.id), str(session.task_id))
    assert (row["observed"], row["rule"], row["agent_action"]) == ("dead", "dead_resume_now", "resume")
    assert (row["strategy"], row["session_state"]) == ("fresh", "WAITING_FOR_INPUT")
    assert sum(document["outcomes"].values()) == 1


def test_sweep_by_command_is_stored_and_holds_no_lease_afterwards(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    document = recover_sessions()
    kept = RecoverySweep.objects.get()
    assert (str(kept.id), kept.trigger, kept.outcomes) == (document["sweep_id"], "command", document["outcomes"])
    assert SweepOutcome.objects.get().session_id == session.id
    assert execution_of(session).owner == ""
    assert not Supervisor.objects.exists()


def test_living_session_is_reattached_and_its_lease_released(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    with recording_agentctl(session) as agentctl:
        runtime.set_observation(session, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        document = recover_sessions()
    assert document["outcomes"]["reattached"] == 1
    assert document["sessions"][0]["executor_status"] == "ready"
    assert (execution_of(session).owner, execution_of(session).generation) == ("", 2)


def test_dry_run_writes_nothing(runtime: RecordingRuntime) -> None:
    lost_session(runtime)
    before = database_dump.dump()
    document = recover_sessions("--dry-run")
    assert document["dry_run"] is True
    assert document["sessions"][0]["rule"] == "dead_resume_now"
    assert database_dump.dump() == before


def test_only_named_sessions_are_examined(runtime: RecordingRuntime) -> None:
    one, two, _ = (lost_session(runtime) for _ in range(3))
    document = recover_sessions("--session", str(one.id), "--session", str(two.id), "--dry-run")
    assert {row["session_id"] for row in document["sessions"]} == {str(one.id), str(two.id)}


def test_limits_of_the_command_line_reach_the_runtime(runtime: RecordingRuntime) -> None:
    lost_session(runtime)
    recover_sessions("--concurrency", "3", "--timeout", "0.5", "--dry-run")
    assert runtime.looks == [(1, 0.5, 3)]


def test_table_has_its_columns_and_ends_with_a_summary(
    runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    session = lost_session(runtime)
    call_command("recover_sessions")
    lines = capsys.readouterr().out.splitlines()
    assert tuple(lines[0].split()) == COLUMNS
    for text in ("Faster parser", str(session.id)[:8], "recording", "dead", "dead resume now"):
        assert text in lines[1]
    assert lines[-1].startswith("1 examined in ")


def test_empty_sweep_prints_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("recover_sessions")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0 examined in ")
    assert line.endswith(": nothing to do.")


def test_summary_names_the_supervisor_that_holds_skipped_sessions(
    runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    session = lost_session(runtime)
    later = timezone.now() + timedelta(hours=1)
    change(execution_of(session), owner="0123456789abcdef", lease_expires_at=later)
    call_command("recover_sessions", "--dry-run")
    out = capsys.readouterr().out
    assert "1 skipped (dry run: nothing was written). Held by supervisor 01234567." in out


def test_explanation_lists_facts_and_rule(runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    session = lost_session(runtime, policy="on_open")
    call_command("recover_sessions", "--explain", "--dry-run")
    out = capsys.readouterr().out
    assert f"session {session.id}" in out
    for label, value in (("observed", "dead process_gone"), ("policy", "on_open, boot"), ("lease", "free")):
        assert any(line.split()[0] == label and value in line for line in out.splitlines() if line.strip())
    assert "dead_resume_later: The execution is gone; it is started on request." in out


def test_markup_in_a_title_is_printed_literally(runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    session = lost_session(runtime)
    change(session.task, title="[red]all is lost[/red]")
    call_command("recover_sessions", "--dry-run")
    assert "[red]all is lost[/red]" in capsys.readouterr().out


# --- exit status ---


def test_strict_fails_when_a_session_ended_in_error(runtime: RecordingRuntime) -> None:
    good, bad = lost_session(runtime), lost_session(runtime)
    runtime.set_observation(bad, UNKNOWN)
    with pytest.raises(SystemExit) as ended:
        recover_sessions("--strict")
    assert ended.value.code == 1
    assert (fresh(good).state, fresh(bad).state) == ("WAITING_FOR_INPUT", "ERROR")
    assert recover_sessions("--strict", "--session", str(good.id))["examined"] == 1


def test_unknown_session_is_an_argument_error() -> None:
    missing = uuid.uuid4()
    with pytest.raises(CommandError, match=f"there is no session {missing}") as refusal_of:
        recover_sessions("--session", str(missing))
    assert refusal_of.value.returncode == 2
    assert not RecoverySweep.objects.exists()


def test_session_with_nothing_to_recover_is_no_error() -> None:
    session = running_session(execution={**NO_LEASE, "status": "stopped", "status_reason": "idle"})
    assert recover_sessions("--session", str(session.id))["examined"] == 0


def refusal_of(env: dict[str, str], *flags: str) -> str:
    """Return the one line on stderr of a sweep that could not run."""
    done = manage(env, "recover_sessions", *flags)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


def files(directory: Path) -> dict[str, bytes]:
    """Return the database files below a directory."""
    return {path.name: path.read_bytes() for path in directory.glob("*.sqlite3")}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--timeout", "soon"), "'soon' is not a positive number"),
        (("--concurrency", "0"), "'0' is not a positive number"),
        (("--concurrency", "2.5"), "'2.5' is not a positive number"),
        (("--session", "the first"), "'the first' is not a session id"),
        (("--runtime", "cloud"), "invalid choice: 'cloud'"),
        (("--everything",), "unrecognized arguments: --everything"),
    ],
)
def test_invalid_argument_prints_one_line(
    flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "recover_sessions", *flags])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith("manage.py recover_sessions: ")
    assert text in line
    assert not RecoverySweep.objects.exists()


def test_help_lists_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "recover_sessions", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--dry-run", "--explain", "--json", "--session", "--runtime", "--wait", "--strict"):
        assert flag in out


@pytest.mark.any_database
def test_invalid_argument_exits_with_status_two(tmp_path: Path) -> None:
    assert "'-1' is not a positive number" in refusal_of(environment(tmp_path / "data"), "--wait", "-1")


@pytest.mark.any_database
def test_unreachable_database_prints_one_line(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", KANDEV_DATABASE_URL="postgres://127.0.0.1:1/x")
    assert refusal_of(env).startswith("CommandError: the database cannot be reached: ")


@pytest.mark.postgresql
def test_database_without_tables_prints_one_line(tmp_path: Path) -> None:
    line = refusal_of(environment(tmp_path / "data", **new_database()))
    assert "migrations; run manage.py migrate" in line


@pytest.mark.postgresql
def test_unmigrated_database_is_not_served(tmp_path: Path) -> None:
    done = manage(environment(tmp_path / "data", **new_database()), "serve", "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "CommandError: the database has unapplied migrations; run manage.py migrate first\n"


@pytest.mark.any_database
def test_file_that_is_no_database_prints_one_line_and_stays_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "kandev.sqlite3").write_bytes(b"this is no database at all, and long enough to be sure of it" * 20)
    before = files(tmp_path)
    env = environment(tmp_path)
    del env["KANDEV_DATABASE_URL"]
    assert "the database cannot be reached" in refusal_of(env)
    assert files(tmp_path) == before


@pytest.mark.any_database
def test_missing_migrations_print_one_line_and_are_not_run(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE kept (word TEXT)")
        made.execute("INSERT INTO kept VALUES ('walrus')")
    made.close()
    line = refusal_of(environment(tmp_path / "data", KANDEV_DATABASE_URL=f"sqlite://{path}"))
    assert "migrations; run manage.py migrate" in line
    with sqlite3.connect(path) as seen:
        assert seen.execute("SELECT name FROM sqlite_master").fetchall() == [("kept",)]
        assert seen.execute("SELECT word FROM kept").fetchall() == [("walrus",)]
    seen.close()


@pytest.mark.any_database
def test_missing_database_is_not_created(tmp_path: Path) -> None:
    env = environment(tmp_path / "data")
    del env["KANDEV_DATABASE_URL"]
    assert "migrat" in refusal_of(env)
    assert files(tmp_path / "data") == {}


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("KANDEV_LEASE_TTTL", "3", "unknown setting KANDEV_LEASE_TTTL: did you mean KANDEV_LEASE_TTL?"),
        ("KANDEV_SWEEP_TIMEOUT", "soon", "KANDEV_SWEEP_TIMEOUT=soon: must be a number of seconds, 0 or more"),
    ],
)
def test_invalid_environment_prints_one_line(tmp_path: Path, name: str, value: str, text: str) -> None:
    assert refusal_of(environment(tmp_path / "data", **{name: value})) == f"kandev: {text}"
    assert not (tmp_path / "data").exists()
