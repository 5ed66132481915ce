"""A process that dies between two steps leaves all of a step or nothing, and whoever repeats it completes it once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executors_app.machine.crash_points import POINT_NAMES
from tests.drills.deployment import Deployment
from tests.drills.row_kills import CASES, POINTS, push_over_ssh
from tests.services import require

pytestmark = pytest.mark.any_database

SCRIPT = "import json; from tests.drills.row_kills import run_all; print(json.dumps(run_all()))"
BEFORE_COMMIT = (
    *("request.prompt_written", "request.order_written"),
    *("queue.change_written", "wait.change_written", "own_turn.begun", "own_turn.ended", "background.reported"),
    *("finish_request.written", "finish.prepared"),
    *("usage.turn_counted", "budget.hold_written", "schedule.run_written", "schedule.slot_moved"),
)

IN_BETWEEN = ("lost.declared", "lost.unwritten", "finish.planned", "finish.applied", "finish.end_written")
"""Points between two commits of a step: some of it is done, and whoever repeats it completes the rest."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what the database showed around the kill at every point of every step."""
    made = Deployment(tmp_path_factory.mktemp("rows"))
    made.prepare()
    done = made.manage("shell", "-v", "0", "-c", SCRIPT, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("case", CASES)
def test_killed_step_is_complete_or_not_begun_and_is_completed_once(seen: dict[str, dict[str, Any]], case: str) -> None:
    step, point = CASES[case]
    if step is push_over_ssh:
        require("git over ssh")
    found = seen[case]
    assert found["status"] == -9, "the process dies at the point"
    assert found["repeated"] != found["before"]
    assert found["again"] == found["repeated"], "a step that is over changes nothing"
    if point in BEFORE_COMMIT:
        assert found["killed"] == found["before"]
    elif point in IN_BETWEEN:
        assert found["killed"] not in (found["before"], found["repeated"])
    else:
        assert found["killed"] == found["repeated"]


@pytest.mark.parametrize("step", [step.__name__ for step, points in POINTS.items() if len(points) > 1])
def test_step_has_the_same_result_wherever_it_was_killed(seen: dict[str, dict[str, Any]], step: str) -> None:
    if step == push_over_ssh.__name__:
        require("git over ssh")
    results = [found["repeated"] for case, found in seen.items() if case.split()[0] == step]
    assert len(results) > 1
    assert all(result == results[0] for result in results)


def test_every_point_of_these_rows_is_killed_at() -> None:
    topics = {point.partition(".")[0] for points in POINTS.values() for point in points}
    assert {point for _, point in CASES.values()} == {name for name in POINT_NAMES if name.partition(".")[0] in topics}
