"""Processes that turns have left running are named on page and status, whatever they call themselves."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import TaskSession
from sessions_app.sessions.services.status import session_status
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, fresh, running_session

pytestmark = pytest.mark.django_db

SINCE = "2026-01-31T12:00:00+00:00"


def report(session: TaskSession, journal: Journal, *processes: Any, count: Any = None) -> dict[str, Any]:
    count = len(processes) if count is None else count
    ingest(session, [journal.line("agent.processes", processes=list(processes), count=count)], lease=None)
    return session_status(fresh(session))


def listed(status: dict[str, Any]) -> list[str]:
    return [process["command"] for process in status["background_processes"]]


def test_processes_are_in_the_status_until_their_agent_has_ended() -> None:
    session, journal = running_session(), Journal()
    change(session, launch_id="launch-1")
    status = report(session, journal, {"command": "npm run dev", "since": SINCE})
    assert status["background_processes"] == [{"command": "npm run dev", "since": SINCE}]
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
    ],
)
def test_hostile_report_is_bounded_and_visible(
    processes: list[Any], count: Any, commands: list[str], shown_count: int
) -> None:
    session = running_session()
    status = report(session, Journal(), *processes, count=count)
    assert (listed(status), status["background_process_count"]) == (commands, shown_count)
