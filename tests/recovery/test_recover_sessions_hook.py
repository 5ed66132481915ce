"""``manage.py recover_sessions`` as a deploy hook: when it fails, and its output with and without a supervisor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from executors_app.machine.process import identity
from executors_app.wire.executions import Observation, Observed
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import IntentKind, RecoverySweep, Supervisor, SweepOutcome, TaskSession, session_transaction
from sessions_app.recovery.rules.resumability import Reason
from sessions_app.supervisor.leases import SupervisorLock
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import UNKNOWN, RecordingRuntime, lost_session
from tests.supervisor.rows import change, execution_of, fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)

LIVE = "0123456789abcdef"


def fail(session: TaskSession, move: str = "fail", code: str = str(Reason.NOT_RESUMABLE)) -> None:
    """Move the session's state now, as the supervisor does."""
    with session_transaction(session.id) as transaction:
        transaction.move_session(move, error_code=code, error_message="Something broke.")


def run_command(*flags: str) -> tuple[int, dict[str, Any], str]:
    """Return exit status, document and stderr of the command."""
    out, err = StringIO(), StringIO()
    try:
        call_command("recover_sessions", "--json", *flags, stdout=out, stderr=err)
    except SystemExit as end:
        return int(end.code or 0), json.loads(out.getvalue()), err.getvalue()
    return 0, json.loads(out.getvalue()), err.getvalue()


def printed_output(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Return the output for people."""
    call_command("recover_sessions", *flags)
    return capsys.readouterr().out


@contextmanager
def live_supervisor(since: datetime | None = None) -> Iterator[Supervisor]:
    """Stand in for a live supervisor that has swept and holds the embedded database."""
    now = timezone.now()
    row = Supervisor.objects.create(
        boot_id=LIVE,
        host_id=identity.host_id(),
        process=identity.identify_self().to_json(),
        started_at=since or now,
        beat_at=now,
        swept_at=now,
    )
    with SupervisorLock("supervise") as lock:
        assert lock.take()
        yield row


def leased_session(runtime: RecordingRuntime, **fields: Any) -> TaskSession:
    """Return a session whose lease the live supervisor holds."""
    later = timezone.now() + timedelta(hours=1)
    return running_session(runtime=runtime.name, execution={"owner": LIVE, "lease_expires_at": later}, **fields)


# --- --strict ---


def test_strict_ignores_sessions_broken_before(runtime: RecordingRuntime) -> None:
    known = lost_session(runtime)
    fail(known)
    runtime.set_observation(known, UNKNOWN)
    assert run_command("--strict")[0] == 0
    assert fresh(known).state == "ERROR"


def test_strict_all_reports_earlier_failures_with_its_own_status(runtime: RecordingRuntime) -> None:
    known = lost_session(runtime)
    fail(known)
    runtime.set_observation(known, UNKNOWN)
    code, document, err = run_command("--strict=all")
    assert (code, document["broken"], document["broken_before"]) == (4, [], [str(known.id)])
    assert f"broken before: session {known.id} is in ERROR: " in err


def test_strict_fails_for_a_session_given_up_now(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime, start_attempts=5)
    code, document, err = run_command("--strict")
    assert (code, fresh(session).state, document["broken"]) == (1, "FAILED", [str(session.id)])
    assert f"broken by this deploy: session {session.id} is in FAILED: " in err


def test_strict_fails_for_a_session_given_up_by_the_running_supervisor(runtime: RecordingRuntime) -> None:
    session = leased_session(runtime)
    with live_supervisor():
        fail(session, "give_up")
        assert run_command("--strict")[0] == 1


def test_strict_ignores_failures_before_the_supervisor_started(runtime: RecordingRuntime) -> None:
    session = leased_session(runtime)
    fail(session, "give_up")
    with live_supervisor():
        assert run_command("--strict")[0] == 0


def test_start_of_a_dead_supervisor_does_not_begin_the_deploy(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    gone = {**identity.identify_self().to_json(), "pid": 2**22 + 1}
    now, before = timezone.now(), timezone.now() - timedelta(days=1)
    values = {"host_id": identity.host_id(), "process": gone, "started_at": before, "beat_at": now}
    Supervisor.objects.create(boot_id=LIVE, **values)
    fail(session, "give_up")
    assert run_command("--strict")[0] == 0


def test_since_sets_the_beginning_of_the_deploy(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    before = timezone.now().isoformat()
    fail(session, "give_up")
    assert run_command("--strict", "--since", before)[0] == 1
    assert run_command("--strict", "--since", timezone.now().isoformat())[0] == 0


def test_giving_up_a_session_in_error_is_a_new_failure(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    fail(session, code="launch_failed")
    before = timezone.now().isoformat()
    fail(session, "give_up")
    assert run_command("--strict", "--since", before)[0] == 1


@pytest.mark.parametrize("gone", [{"desired_state": "stopped"}, {"created_at": timezone.now() + timedelta(days=1)}])
def test_strict_counts_only_earlier_sessions_that_should_run(runtime: RecordingRuntime, gone: dict[str, Any]) -> None:
    session = lost_session(runtime)
    before = timezone.now().isoformat()
    fail(session, "give_up")
    change(session, **gone)
    assert run_command("--strict", "--since", before)[0] == 0


def test_strict_checks_only_the_named_sessions(runtime: RecordingRuntime) -> None:
    good, bad = lost_session(runtime), lost_session(runtime)
    runtime.set_observation(bad, UNKNOWN)
    before = timezone.now().isoformat()
    assert run_command("--strict")[0] == 1
    assert run_command("--strict", "--since", before, "--session", str(good.id))[0] == 0


def test_newly_damaged_row_fails_the_deploy_once(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime)
    change(execution_of(session), generation=-1)
    assert run_command("--strict")[0] == 1
    assert run_command("--strict")[0] == 0
    assert run_command("--strict=all")[0] == 4


def test_unfinished_starts_after_the_wait_have_their_own_status(runtime: RecordingRuntime) -> None:
    session = leased_session(runtime)
    with live_supervisor():
        create_intent(session, IntentKind.START, None, {"mode": "auto"})
        code, document, err = run_command("--strict", "--wait", "0.3")
    assert (code, document["unfinished"]) == (3, [str(session.id)])
    assert "1 start had not finished after 0.3 s" in err


def test_agent_waiting_for_its_restart_is_unfinished(runtime: RecordingRuntime) -> None:
    session = leased_session(runtime, launch_id="")
    with live_supervisor():
        change(session, next_restart_at=timezone.now() + timedelta(minutes=5))
        code, document, err = run_command("--strict", "--wait", "0.3")
        assert (code, document["unfinished"]) == (3, [str(session.id)])
        assert "1 start had not finished after 0.3 s" in err
        change(session, desired_state="stopped")
        assert run_command("--strict", "--wait", "0.3")[0] == 0


def test_without_a_supervisor_later_restarts_are_not_awaited(runtime: RecordingRuntime) -> None:
    session = lost_session(runtime, start_attempts=2)
    change(session, next_restart_at=timezone.now() + timedelta(minutes=5))
    began = time.monotonic()
    code, document, _ = run_command("--strict", "--wait", "600")
    assert time.monotonic() - began < 300
    assert (code, document["unfinished"]) == (3, [str(session.id)])


def test_wait_fails_when_the_supervisor_has_not_swept_in_time(runtime: RecordingRuntime) -> None:
    leased_session(runtime)
    with live_supervisor() as row:
        change(row, swept_at=None)
        code, _, err = run_command("--strict", "--wait", "0.3")
    assert code == 3
    assert "the supervisor had not finished its first sweep after 0.3 s" in err


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01", "2026-01-01T00:00:00"])
def test_since_requires_a_time_zone(text: str) -> None:
    with pytest.raises(CommandError, match="is not a time with a time zone"):
        call_command("recover_sessions", "--since", text)


def test_since_must_not_be_in_the_future() -> None:
    tomorrow = (timezone.now() + timedelta(days=1)).isoformat()
    with pytest.raises(CommandError, match="is in the future"):
        call_command("recover_sessions", "--strict", "--since", tomorrow)


# --- output ---


def test_dry_run_counts_what_would_happen(runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    living, unreachable = lost_session(runtime), lost_session(runtime)
    lost_session(runtime)
    runtime.set_observation(unreachable, UNKNOWN)
    with recording_agentctl(living) as agentctl:
        runtime.set_observation(living, Observation(Observed.ALIVE, report=agentctl.report(), url=agentctl.url))
        out = printed_output(capsys, "--dry-run")
        document = run_command("--dry-run")[1]
    assert "would be 1 reattached, 1 fresh, 1 failed (dry run: nothing was written)." in out
    assert (document["outcomes"]["reattached"], document["outcomes"]["failed"]) == (1, 1)
    assert sum(document["outcomes"].values()) == 3


def test_starts_without_a_server_wait_for_a_supervisor(
    runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    session = lost_session(runtime)
    out = printed_output(capsys)
    assert "1 start waits for a supervisor: run manage.py serve or supervise, or add --wait." in out
    document = run_command()[1]
    (row,) = document["sessions"]
    assert (row["executor_status"], row["result"]) == ("starting", "under_way")
    assert document["unfinished"] == [str(session.id)]


def test_command_beside_a_supervisor_reports_its_results(
    runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    session = leased_session(runtime)
    with live_supervisor() as row:
        sweep = RecoverySweep.objects.create(boot_id=row.boot_id, trigger="boot", started_at=timezone.now())
        values = {"observed": "alive", "rule": "alive_same_agent", "agent_action": "reattach"}
        SweepOutcome.objects.create(sweep=sweep, session=session, receipt_kind="reattached", **values)
        out = printed_output(capsys)
        document = run_command()[1]
    assert "foreign lease" not in out
    assert "WAITING_FOR_INPUT, alive same agent" in out
    assert "1 reattached. Supervisor 01234567 is running: it does the work, this is its report." in out
    (line,) = document["sessions"]
    assert (line["rule"], line["receipt_kind"], line["by_supervisor"]["rule"]) == (
        "foreign_lease",
        "reattached",
        "alive_same_agent",
    )
    assert (document["outcomes"]["reattached"], document["dry_run"]) == (1, False)


def test_session_held_but_never_swept_is_reported_by_its_state(
    runtime: RecordingRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    leased_session(runtime)
    with live_supervisor():
        out = printed_output(capsys)
    assert "foreign lease" not in out
    assert "WAITING_FOR_INPUT, held by supervisor 01234567" in out
