"""A sample of the kill-point matrix: every crash point and every behaviour at least once.

``make chaos`` runs all of it. Each group has one deployment: its processes die at each of their
points once, while sessions with differently broken agents live their whole lives in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app import crash_points
from executors_app.crash_points import CRASH_POINTS
from tests.chaos import session_steps
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.control_plane import armed
from tests.chaos.deployment import ChaosDeployment
from tests.chaos.matrix import Group, run

OURS = [point.name for point in CRASH_POINTS if "agentctl" not in point.processes]
ITS_OWN = [point.name for point in CRASH_POINTS if "agentctl" in point.processes]
BY_COMMAND = [
    *("supervisor.leased", "supervisor.start_claimed", "sweep.decided", "sweep.taken_over", "sweep.drained"),
    *("sweep.row_unwritten", "sweep.row_written", "sweep.written"),
]
"""Points that every pass of the command reaches."""

GROUPS = {
    "web and supervisor": (OURS, "supervisor", ("forks", "honest", "refuses_load", "dies_in_turn", "ignores_term")),
    "agentctl": (
        ITS_OWN,
        "supervisor",
        (
            *("honest", "hangs_at_load", "floods", "slow_start", "forgets", "lies_about_load", "stderr_flood"),
            *("hangs_at_initialize", "garbage", "relaunches_itself", "big_line", "no_load"),
            *("loads_without_replay", "refuses_turns", "says_nothing", "asks_by_id"),
        ),
    ),
    "recover_sessions": (
        BY_COMMAND,
        "recover_sessions",
        ("refuses_load", "forks", "honest", "slow_start"),
    ),
}


ON_BOTH = {"recover_sessions"}
"""Groups that also run on PostgreSQL; ``python -m tests.chaos --database postgresql`` runs all of it there."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ChaosDeployment]:
    """A deployment whose processes a test starts, kills and starts again."""
    made = ChaosDeployment(tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.database) if name in ON_BOTH else name for name in GROUPS]
)
def test_no_kill_loses_or_repeats_anything(world: ChaosDeployment, name: str) -> None:
    points, process, behaviours = GROUPS[name]
    group = Group(points, [BEHAVIOURS[one] for one in behaviours], how="", process=process)
    outcome = run(world, group)

    assert not outcome.violations, "\n".join([*outcome.violations, *outcome.stories])
    assert not group.unreached(outcome)


@pytest.mark.database
def test_false_load_claim_is_detected_although_the_answer_was_lost(world: ChaosDeployment, tmp_path: Path) -> None:
    world.control_plane.start({"web": {}, "supervisor": {}})
    world.control_plane.wait_until_ready()
    session = world.begin(BEHAVIOURS["lies_about_load"], "remember walrus")
    session_steps.wait_until_idle(session)
    session_steps.stop(session)
    world.control_plane.rearm("supervisor", armed("supervisor.agent_started", tmp_path / "reached"))
    session_steps.prompt(session, "work 0.3")
    session_steps.wait_until_idle(session)

    assert (tmp_path / "reached" / "supervisor.agent_started").exists()
    assert session.row["error_code"] == "context_mismatch"
    kinds = [row["kind"] for row in session.rows("continuity_receipts", "created_at") if row["launch_id"]]
    assert kinds == ["fresh", "failed"]


def test_groups_cover_every_crash_point_and_every_behaviour() -> None:
    assert {behaviour for _, _, behaviours in GROUPS.values() for behaviour in behaviours} == set(BEHAVIOURS)
    assert {point for points, _, _ in GROUPS.values() for point in points} == crash_points.POINT_NAMES
