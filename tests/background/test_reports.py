"""Processes that turns have left running are named on page and status, whatever they call themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from executors_app.models import AgentProfile
from sessions_app.background.rules.background_work import POLICY_TEXTS, cpu_time, ends_sentence, parse_report
from sessions_app.background.services import ended_with_task, policy_of, set_background_policy
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import BackgroundWork, TaskSession
from sessions_app.sessions.services.status import session_status
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, execution_of, fresh, running_session

pytestmark = pytest.mark.django_db

SINCE = "2026-01-31T12:00:00+00:00"


def report(
    session: TaskSession, journal: Journal, *processes: Any, count: Any = None, **measured: Any
) -> dict[str, Any]:
    count = len(processes) if count is None else count
    line = journal.line("agent.processes", processes=list(processes), count=count, **measured)
    ingest(session, [line], lease=None)
    return session_status(fresh(session))


def measure(command: str, cpu_seconds: Any, since: str = SINCE) -> dict[str, Any]:
    return {"command": command, "since": since, "cpu_seconds": cpu_seconds}


def with_agent() -> TaskSession:
    session = running_session()
    return change(session, launch_id="launch-1")


def listed(status: dict[str, Any]) -> list[str]:
    return [process["command"] for process in status["background_processes"]]


def test_processes_are_in_the_status_until_their_agent_has_ended() -> None:
    session, journal = running_session(), Journal()
    change(session, launch_id="launch-1")
    status = report(session, journal, {"command": "npm run dev", "since": SINCE})
    assert status["background_processes"] == [{"command": "npm run dev", "since": SINCE, "cpu_seconds": None}]
    assert status["background_process_count"] == 1
    change(session, launch_id="launch-2")
    assert listed(session_status(fresh(session))) == []


def test_repeated_report_writes_no_event() -> None:
    session, journal = running_session(), Journal()
    for _ in range(2):
        report(session, journal, {"command": "sleep 9", "since": SINCE})
    assert session.events.filter(name="session.processes").count() == 1
    assert listed(report(session, journal)) == []


@pytest.mark.parametrize(
    ("processes", "count", "commands", "shown_count"),
    [
        (["sleep 9"], 1, [], 1),
        ([{"command": 5, "since": SINCE}], 1, [], 1),
        ([{"command": "a", "since": "yesterday"}, {"command": "b", "since": "2026-01-31T12:00:00"}], 2, [], 2),
        ([{"command": "a", "since": "0001-01-01T00:00:00+23:59"}], 1, [], 1),
        ([{"command": "x" * 5000, "since": SINCE}], 1, ["x" * 200], 1),
        ([{"command": str(number), "since": SINCE} for number in range(500)], 500, [str(n) for n in range(20)], 500),
        ([{"command": "a\nb", "since": SINCE}], True, ["a b"], 1),
        ([{"command": "rm \u202efdp.exe", "since": SINCE}], -3, ["rm ⟦RLO⟧fdp.exe"], 1),
        ([], 10**30, [], 10**6),
        ([measure("a", "5"), measure("b", -1), measure("c", 1e400), measure("d", True)], 4, ["a", "b", "c", "d"], 4),
    ],
)
def test_hostile_report_is_bounded_and_visible(
    processes: list[Any], count: Any, commands: list[str], shown_count: int
) -> None:
    session = running_session()
    status = report(session, Journal(), *processes, count=count)
    assert (listed(status), status["background_process_count"]) == (commands, shown_count)
    assert all(process["cpu_seconds"] is None for process in status["background_processes"])


def test_measurements_replace_each_other_without_events() -> None:
    session, journal = with_agent(), Journal()
    report(session, journal, measure("npm run dev", 1.5), cpu_seconds=1.5, complete=True)
    seq = fresh(session).last_seq
    updated_at = fresh(session).updated_at

    status = report(session, journal, measure("npm run dev", 9.25), cpu_seconds=9.25, complete=True)

    assert status["background_processes"] == [measure("npm run dev", 9.2)]
    assert (status["background"]["cpu_seconds"], fresh(session).last_seq) == (9.2, seq)
    assert fresh(session).updated_at == updated_at, "a measurement is no activity"


def test_process_of_a_loop_that_begins_again_is_no_news() -> None:
    session, journal = with_agent(), Journal()
    report(session, journal, measure("sleep 5", 0), cpu_seconds=0)
    later = "2026-01-31T12:00:05+00:00"
    status = report(session, journal, measure("sleep 5", 0, later), cpu_seconds=0)
    assert status["background_processes"][0]["since"] == later
    assert session.events.filter(name="session.processes").count() == 1


def test_nothing_is_known_of_an_agent_out_of_reach_that_has_reported_nothing() -> None:
    session = with_agent()
    change(execution_of(session), status="error", error_code="unreachable")
    status = session_status(fresh(session))
    assert (listed(status), status["background"]["is_current"]) == ([], False)


def test_more_processes_than_are_read_are_not_called_none() -> None:
    status = report(with_agent(), Journal(), cpu_seconds=0, complete=False)
    assert (status["background_process_count"], status["background"]["is_complete"]) == (1, False)


@pytest.mark.parametrize(
    ("age", "measured", "error_code", "is_current"),
    [
        (timedelta(minutes=2), True, "", True),
        (timedelta(minutes=4), True, "", False),
        (timedelta(days=2), False, "", True),
        (timedelta(minutes=1), True, "unreachable", False),
        (timedelta(minutes=1), False, "unreachable", False),
    ],
    ids=["just now", "silent since", "release 1.0 tells changes only", "out of reach", "release 1.0 out of reach"],
)
def test_report_holds_only_as_long_as_it_is_repeated(
    age: timedelta, measured: bool, error_code: str, is_current: bool
) -> None:
    session, journal = with_agent(), Journal()
    values = {"cpu_seconds": 1.0} if measured else {}
    report(session, journal, {"command": "npm run dev", "since": SINCE}, **values)
    BackgroundWork.objects.update(reported_at=timezone.now() - age)
    change(session, error_code=error_code)
    if error_code:
        change(execution_of(session), status="error", error_code=error_code)
    status = session_status(fresh(session))
    assert (listed(status), status["background"]["is_current"]) == (["npm run dev"], is_current)
    assert ("what still runs of" in ended_with_task(session.task)) is not is_current
    reported_at = datetime.fromisoformat(status["background"]["reported_at"])
    assert reported_at.astimezone(UTC) < timezone.now()


@pytest.mark.parametrize("skew", [timedelta(days=1), timedelta(days=-1)], ids=["ahead", "behind"])
def test_wrong_clock_of_the_agents_machine_does_not_change_what_is_current(skew: timedelta) -> None:
    session, journal = with_agent(), Journal()
    values = {"processes": [measure("npm run dev", 1)], "count": 1, "cpu_seconds": 1}
    line = journal.line("agent.processes", **values)
    ingest(session, [{**line, "ts": (timezone.now() + skew).timestamp()}], lease=None)
    assert session_status(fresh(session))["background"]["is_current"] is True
    BackgroundWork.objects.update(reported_at=F("reported_at") - timedelta(minutes=4))
    assert session_status(fresh(session))["background"]["is_current"] is False


@pytest.mark.parametrize(
    ("ahead", "age"),
    [
        (timedelta(), timedelta(hours=2)),
        (timedelta(hours=1), timedelta(hours=2)),
        (timedelta(hours=1), timedelta(minutes=1)),
    ],
    ids=["right", "an hour ahead", "begun in the future"],
)
def test_clock_that_is_ahead_does_not_move_the_start(ahead: timedelta, age: timedelta) -> None:
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    their_now = now + ahead
    processes = [measure("make", 1, (their_now - age).isoformat())]
    line = {"ts": their_now.timestamp(), "processes": processes, "count": 1}
    [process] = parse_report(line, now).processes
    assert now - datetime.fromisoformat(process["since"]) == age


@pytest.mark.parametrize("written_at", [None, "now", True, float("nan"), float("inf"), -1, 10**400])
def test_hostile_time_of_a_report_changes_nothing(written_at: Any) -> None:
    line = {"ts": written_at, "processes": [measure("make", 1)], "count": 1}
    [process] = parse_report(line, datetime(2026, 11, 29, 12, tzinfo=UTC)).processes
    assert process["since"] == SINCE


def test_list_of_a_supervisor_of_release_1_0_is_shown_without_measurements() -> None:
    session, journal = with_agent(), Journal()
    report(session, journal, measure("make", 4), cpu_seconds=4)
    known = {"launch_id": "launch-1", "processes": [{"command": "npm run dev", "since": SINCE}], "count": 1}
    change(session, metadata={"background_processes": known})
    status = session_status(fresh(session))
    assert status["background_processes"] == [measure("npm run dev", None)]
    assert status["background"]["reported_at"] is None


def test_nothing_of_an_agent_that_has_ended_is_listed() -> None:
    session = with_agent()
    report(session, Journal(), measure("make", 4), cpu_seconds=4)
    change(execution_of(session), status="stopped")
    assert listed(session_status(fresh(session))) == []


def test_own_policy_applies_until_it_is_cleared(settings: Any) -> None:
    session = with_agent()

    def background() -> tuple[str, str, bool]:
        status = session_status(fresh(session))["background"]
        return status["policy"], status["policy_source"], status["has_own_policy"]

    assert background() == ("keep", "deployment", False)
    settings.KANDEV_BACKGROUND_PROCESSES = "end"
    assert background() == ("end", "deployment", False)
    set_background_policy(session.id, "keep")
    set_background_policy(session.id, "keep")
    assert background() == ("keep", "session", True)
    set_background_policy(session.id, "")
    assert background() == ("end", "deployment", False)
    recorded = session.events.filter(name="session.background_policy").order_by("seq")
    assert [event.payload for event in recorded] == [
        {"policy": "keep", "is_own": True},
        {"policy": "end", "is_own": False},
    ]
    with pytest.raises(Invalid):
        set_background_policy(session.id, "kill")


@pytest.mark.parametrize(
    ("own", "of_profile", "policy", "source"),
    [
        ("", "", "keep", "deployment"),
        ("", "end", "end", "profile"),
        ("keep", "end", "keep", "session"),
        ("end", "keep", "end", "session"),
        ("kill", "end", "end", "profile"),
        ("", "kill", "keep", "deployment"),
    ],
)
def test_first_place_that_sets_a_policy_decides(own: str, of_profile: str, policy: str, source: str) -> None:
    session = with_agent()
    BackgroundWork.objects.create(session=session, policy=own)
    AgentProfile.objects.update(background_policy=of_profile)
    known = session_status(fresh(session))["background"]
    assert (known["policy"], known["policy_source"], policy_of(session.id)) == (policy, source, policy)


def test_policy_of_a_profile_applies_again_once_the_session_has_none() -> None:
    session = with_agent()
    AgentProfile.objects.update(background_policy="end")
    set_background_policy(session.id, "keep")
    set_background_policy(session.id, "")
    assert session.events.get(name="session.background_policy", payload__is_own=False).payload["policy"] == "end"


def test_policies_of_profiles_are_those_of_sessions() -> None:
    assert dict(AgentProfile.BackgroundPolicy.choices) == {str(policy): text for policy, text in POLICY_TEXTS.items()}


@pytest.mark.parametrize(
    ("commands", "count", "sentence"),
    [
        ([], 0, ""),
        (["make"], 1, "Stopping ends 1 process that the agent has left running: make."),
        ([], 2, "Stopping ends 2 processes that the agent has left running."),
        (list("abcd"), 5, "Stopping ends 5 processes that the agent has left running: a; b; c; 2 more."),
        (["make"], 5, "Stopping ends 5 processes that the agent has left running: make; 4 more."),
        (["x" * 99], 1, f"Stopping ends 1 process that the agent has left running: {'x' * 59}…."),
    ],
)
def test_question_before_a_stop_names_what_it_ends(commands: list[str], count: int, sentence: str) -> None:
    assert ends_sentence(commands, count) == sentence


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.0, "0.0 s"), (9.94, "9.9 s"), (59.9, "59 s"), (61.0, "1 min 1 s"), (7260.0, "2 h 1 min")],
)
def test_cpu_time_is_written_for_people(seconds: float | None, text: str) -> None:
    assert cpu_time(seconds) == text
