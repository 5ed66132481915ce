"""Only idle sessions are put to sleep, and a prompt wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from executors_app.wire.protocol import JournalKind
from sessions_app.background.rules.background_work import BackgroundPolicy
from sessions_app.background.services import set_background_policy
from sessions_app.events import event_label
from sessions_app.models import (
    IDLE_REASON,
    Intent,
    PermissionRequest,
    Prompt,
    Suspension,
    TaskSession,
    Turn,
    WaitKey,
    session_transaction,
)
from sessions_app.prompts import services as prompts
from sessions_app.prompts.services import context_before
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import load_status, session_status
from sessions_app.sessions.views.session_page import session_context, wants_start_on_open
from sessions_app.starts import idle_sleep
from sessions_app.starts.outcomes import write_stopped
from sessions_app.stream.models import texts_of
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.turns.events import OutsideWorkInterrupted
from sessions_app.waits import services as waits
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_agentctl import RecordingAgentctl, recording_agentctl
from tests.supervisor.recording_runtime import sweep_once
from tests.supervisor.rows import (
    NO_LEASE,
    change,
    execution_of,
    fresh,
    last_payload,
    make_user,
    names,
    open_orders,
    prompt_states,
    running_session,
)

pytestmark = pytest.mark.django_db(transaction=True)
LONG_AGO = timedelta(hours=2)


@pytest.fixture(autouse=True)
def _one_hour_default(settings: Any) -> None:
    """Set the default to one hour."""
    settings.KANDEV_IDLE_SLEEP = 3600


def idle_session(**fields: Any) -> TaskSession:
    """Return a session whose agent has completed a turn and has been idle for two hours."""
    session, journal = running_session(**fields), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write the parser", state="sending")
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1")])
    return backdate(session)


def backdate(session: TaskSession) -> TaskSession:
    """Backdate everything in the session by two hours."""
    then = timezone.now() - LONG_AGO
    Turn.objects.filter(session=session).exclude(state="waiting").update(ended_at=then)
    return change(session, updated_at=then, ready_since=then)


def run_sleep_check(session: TaskSession, agentctl: RecordingAgentctl) -> int:
    """Run one check of the supervisor that holds the session; return how many fell asleep."""
    change(execution_of(session), **NO_LEASE)

    async def run() -> int:
        registry = ExecutionRegistry()
        try:
            await registry.open_stream(session.id)
            await registry.database(backdate, session)
            return await idle_sleep.sleep_idle_sessions(registry)
        finally:
            await registry.release_all()
            await registry.close()

    assert agentctl.url
    return asyncio.run(run())


def put_to_sleep(session: TaskSession, **report: Any) -> bool:
    """Return whether the session falls asleep when its agentctl reports these values."""
    with recording_agentctl(session) as agentctl:
        plain = agentctl.report

        def full_report() -> dict[str, Any]:
            answer = plain()
            answer["workspace"]["shells"] = report.get("shells", 0)
            answer["jobs"] = report.get("jobs", 0)
            answer["background"] = report.get("background", [])
            answer["agent"].update(report.get("agent", {}))
            answer["pending_permissions"] = report.get("pending", [])
            if report.get("shells", 0) is None:
                del answer["workspace"]["shells"]
            return answer

        agentctl.report = full_report  # type: ignore[method-assign]
        return bool(run_sleep_check(session, agentctl))


def test_idle_session_is_put_to_sleep_with_a_reason() -> None:
    session = idle_session()
    assert put_to_sleep(session)
    row, execution = fresh(session), execution_of(session)
    assert (row.state, row.desired_state, row.launch_id) == ("WAITING_FOR_INPUT", "running", "")
    assert (execution.status, execution.status_reason, execution.resume_token) == (
        "stopped",
        IDLE_REASON,
        "conversation-1",
    )
    assert open_orders(session) == [("stop", {"reason": IDLE_REASON})]
    assert last_payload(session, "session.asleep")["after"] == 3600
    status = session_status(row)
    assert (status["asleep"], status["is_agent_running"], status["is_resumable"]) == (True, False, True)


@pytest.mark.parametrize("limit_lasts", [True, False])
def test_session_sleeps_while_a_usage_limit_holds_its_prompts_back(limit_lasts: bool) -> None:
    session = idle_session()
    wakes_at = timezone.now() + timedelta(hours=1 if limit_lasts else -1)
    Suspension.objects.create(session=session, run=session.runs.get(), reason="usage_limit", wakes_at=wakes_at)
    Prompt.objects.create(session=session, message_id="p2", text="next")
    assert put_to_sleep(session) is limit_lasts
    assert prompt_states(session)["p2"] == "queued"


def test_agent_that_waits_by_itself_for_its_limit_stays_awake() -> None:
    session = idle_session()
    wakes_at = timezone.now() + timedelta(hours=1)
    row = Suspension.objects.create(
        session=session, run=session.runs.get(), reason="usage_limit", wakes_at=wakes_at, waits_by_itself=True
    )
    assert not put_to_sleep(session)
    change(row, waits_by_itself=False)
    assert put_to_sleep(session)


def test_work_that_the_agent_began_counts_for_since_when_a_session_is_idle() -> None:
    session, journal = idle_session(), Journal()
    journal.seq = 100
    ingest(session, journal.says("The build has failed."))
    assert fresh(session).work_state == "working"
    ingest(session, [journal.line(JournalKind.AGENT_TURN_ENDED)])
    backdate(session)
    worked_at = timezone.now() - timedelta(minutes=90)
    change(session.runs.get(origin="agent"), ended_at=worked_at)

    with session_transaction(session.id) as transaction:
        assert idle_sleep.idle_since(transaction) == worked_at


def test_sleeping_session_stays_asleep_after_its_execution_ended() -> None:
    session = idle_session()
    put_to_sleep(session)
    write_stopped(session.id, None, IDLE_REASON)
    session.intents.update(done_at=timezone.now())
    assert execution_of(session).status_reason == IDLE_REASON
    assert session_status(fresh(session))["asleep"]
    assert not wants_start_on_open(load_status(fresh(session))), "opening its page does not start the session"
    context = session_context(fresh(session))
    assert context["label"].text == "Asleep"
    assert "asleep" in context["situation"].text
    assert not sweep_once(SweepScope("boot")).decided, "no sweep starts the session"


def test_prompt_wakes_a_session_that_is_falling_asleep() -> None:
    session = idle_session()
    put_to_sleep(session)
    prompts.queue_prompt(session.id, "p2", "go on", make_user())
    assert ("start", {"mode": "auto"}) in open_orders(session)
    write_stopped(session.id, None, IDLE_REASON)
    assert prompt_states(session)["p2"] == "queued"
    assert Intent.objects.filter(session=session, kind="start", done_at=None).exists()


def test_stop_by_a_user_takes_precedence_over_sleep() -> None:
    session = idle_session()
    put_to_sleep(session)
    intents.request_stop(session.id, make_user())
    write_stopped(session.id, None, IDLE_REASON)
    assert execution_of(session).status_reason == "stopped"
    assert fresh(session).desired_state == "stopped"


def _queue(session: TaskSession) -> None:
    Prompt.objects.create(session=session, message_id="p2", text="go on")


def _ask(session: TaskSession) -> None:
    run = Turn.objects.get(session=session, message_id="p1")
    PermissionRequest.objects.create(
        id="q1", session=session, run=run, tool_call={}, options=[], requested_at=timezone.now()
    )


def _order(session: TaskSession) -> None:
    Intent.objects.create(session=session, kind="cancel", payload={"message_id": "p1"})


def _create_running_turn(session: TaskSession) -> None:
    Turn.objects.create(session=session, message_id="p2", state="running", started_at=timezone.now())


def _wait(session: TaskSession, age: timedelta = LONG_AGO, **values: Any) -> Turn:
    """Let the session wait for an external result since ``age``."""
    fields = {"state": "waiting", "has_process": False, "wait_kind": "external", "started_at": timezone.now() - age}
    return Turn.objects.create(session=session, message_id="p2", **{**fields, **values})


def _ask_during_wait(session: TaskSession) -> None:
    _wait(session)
    _ask(session)


def _wait_in_turn(session: TaskSession) -> None:
    _wait(session, has_process=True, wait_kind="permission")


def _get_result(session: TaskSession) -> None:
    _wait(session, state="running")


@pytest.mark.parametrize(
    "busy", [_queue, _ask, _order, _create_running_turn, _ask_during_wait, _wait_in_turn, _get_result]
)
def test_session_with_open_work_is_not_put_to_sleep(busy: Callable[[TaskSession], None]) -> None:
    session = idle_session()
    busy(session)
    assert not put_to_sleep(session)
    assert "session.asleep" not in names(session)


@pytest.mark.parametrize(("age", "falls"), [(timedelta(minutes=90), True), (timedelta(minutes=1), False)])
def test_session_sleeps_during_a_long_wait_for_an_external_result(age: timedelta, falls: bool) -> None:
    session = idle_session()
    turn = _wait(session, age)
    key = WaitKey(session=session, run=turn, wait_kind="external", wait_id="w")
    key.seal()
    key.save(force_insert=True)
    begun_at = turn.started_at

    assert put_to_sleep(session) is falls

    if falls:
        write_stopped(session.id, None, IDLE_REASON)
        assert last_payload(session, "session.asleep")["idle_since"] == begun_at.isoformat()
    turn.refresh_from_db()
    assert (turn.state, turn.ended_at) == ("waiting", None), "the wait goes on without an agent"
    assert WaitKey.objects.active(timezone.now()).get() == key


def test_result_of_a_wait_wakes_the_session_that_sleeps_in_it() -> None:
    session = idle_session()
    opened = waits.open_wait(session.id, "The build", None, make_user())
    Turn.objects.filter(session=session, state="waiting").update(started_at=timezone.now() - LONG_AGO)
    assert put_to_sleep(session)
    write_stopped(session.id, None, IDLE_REASON)
    session.intents.update(done_at=timezone.now())
    assert not sweep_once(SweepScope("boot")).decided, "no sweep starts the session"

    waits.resume_wait(opened.resume_token or "", "passed", "build-1")

    assert prompt_states(session)[f"wait:{opened.wait_id}"] == "queued"
    assert ("start", {"mode": "auto"}) in open_orders(session)


@pytest.mark.parametrize(
    "report",
    [
        {"shells": 1},
        {"shells": None},
        {"jobs": 1},
        {"background": ["npm run dev"]},
        {"agent": {"state": "working"}},
        {"agent": {"active_turn": {"message_id": "p1", "since": ""}}},
        {"agent": {"state": "exited"}},
        {"pending": [{"permission_id": "q1"}]},
    ],
    ids=[
        *("open shell", "no shell count", "running script", "process of a turn"),
        *("working", "in a turn", "agent gone", "open permission"),
    ],
)
def test_agentctl_report_of_activity_prevents_sleep(report: dict[str, Any]) -> None:
    assert not put_to_sleep(idle_session(), **report)


@pytest.mark.parametrize(
    ("fields", "execution"),
    [
        ({"desired_state": "stopped"}, {}),
        ({"work_state": "working"}, {}),
        ({"state": "ERROR"}, {}),
        ({}, {"resume_token": ""}),
        ({}, {"supports_session_resume": False, "resume_token": ""}),
    ],
    ids=["stopped", "working", "error", "no token", "cannot resume"],
)
def test_session_that_could_not_resume_is_not_put_to_sleep(fields: dict[str, Any], execution: dict[str, Any]) -> None:
    session = idle_session()
    change(execution_of(session), **execution)
    assert not put_to_sleep(change(session, **fields))


def test_prompt_during_the_check_prevents_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    session = idle_session()
    before = idle_sleep._has_open_requests

    def queue_then_check(row: TaskSession) -> bool:
        _queue(row)
        return before(row)

    monkeypatch.setattr(idle_sleep, "_has_open_requests", queue_then_check)
    assert not put_to_sleep(session)
    assert execution_of(session).status == "ready"


@pytest.mark.parametrize(("seconds", "falls"), [(3600, True), (10800, False)])
def test_session_sleeps_only_after_the_configured_time(seconds: int, falls: bool, settings: Any) -> None:
    settings.KANDEV_IDLE_SLEEP = seconds
    assert put_to_sleep(idle_session()) is falls


def test_zero_disables_sleep(settings: Any) -> None:
    settings.KANDEV_IDLE_SLEEP = 0
    assert not put_to_sleep(idle_session())


def test_processes_end_with_a_notice_if_the_policy_lets_the_session_sleep(settings: Any) -> None:
    settings.KANDEV_BACKGROUND_PROCESSES = "end"
    session = idle_session()
    assert put_to_sleep(session, background=["npm run dev", "rm \u202efdp.exe"])

    row = fresh(session)
    told = last_payload(row, OutsideWorkInterrupted.name)
    assert (told["reason"], told["processes"]) == (IDLE_REASON, ["npm run dev", "rm ⟦RLO⟧fdp.exe"])
    label = event_label(OutsideWorkInterrupted.name, told).text
    assert label == "Processes that the agent had left ended: the session fell asleep"
    (message,) = row.messages.filter(role="status")
    assert "npm run dev" in texts_of([message])[message.id]
    note = context_before(row, Prompt(session=row, message_id="p2", text="go on"))
    assert "- npm run dev" in note


def test_processes_that_end_with_sleep_are_counted_beyond_those_that_are_listed(settings: Any) -> None:
    settings.KANDEV_BACKGROUND_PROCESSES = "end"
    session = idle_session()
    listed = [{"command": f"sleep {number}", "since": "2026-01-31T12:00:00+00:00"} for number in range(20)]
    known = {"launch_id": session.launch_id, "processes": listed, "count": 35}
    TaskSession.objects.filter(id=session.id).update(metadata={**session.metadata, "background_processes": known})

    assert put_to_sleep(session, background=[each["command"] for each in listed])

    row = fresh(session)
    told = last_payload(row, OutsideWorkInterrupted.name)
    assert (len(told["processes"]), told["process_count"]) == (20, 35)
    assert "- sleep 19\n- and 15 more\n" in context_before(row, Prompt(session=row, message_id="p2", text="go on"))


@pytest.mark.parametrize(("own", "deployment", "sleeps"), [("keep", "end", False), ("end", "keep", True)])
def test_own_policy_for_processes_precedes_that_of_the_deployment(
    own: str, deployment: str, sleeps: bool, settings: Any
) -> None:
    settings.KANDEV_BACKGROUND_PROCESSES = deployment
    session = idle_session()
    set_background_policy(session.id, own)
    assert put_to_sleep(session, background=["npm run dev"]) is sleeps


def test_policy_chosen_during_the_check_keeps_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    session = idle_session()
    before = iter([BackgroundPolicy.END])
    monkeypatch.setattr(idle_sleep, "policy_of", lambda _: next(before, BackgroundPolicy.KEEP))
    assert not put_to_sleep(session, background=["npm run dev"])
    assert execution_of(session).status == "ready"
