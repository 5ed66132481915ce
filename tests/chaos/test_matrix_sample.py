"""A sample of the kill-point matrix: every crash point and every behaviour at least once.

``make chaos`` runs all of it. Each group has one deployment: its processes die at each of their
points once, while sessions with differently broken agents go through all their steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors_app.machine import crash_points
from executors_app.machine.crash_points import POINT_NAMES, processes_of
from tests.chaos import session_steps
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.control_plane import crash_environment
from tests.chaos.deployment import ChaosDeployment
from tests.chaos.matrix import Group, run_group

SUSPENSION_POINTS = [name for name in POINT_NAMES if name.startswith("suspension.")]
CONTROL_PLANE_POINTS = [
    name for name in POINT_NAMES if "agentctl" not in processes_of(name) and name not in SUSPENSION_POINTS
]
AGENTCTL_POINTS = [name for name in POINT_NAMES if "agentctl" in processes_of(name)]
COMMAND_POINTS = [
    *("supervisor.leased", "supervisor.start_claimed", "sweep.decided", "sweep.taken_over", "sweep.drained"),
    *("sweep.row_unwritten", "sweep.row_written", "sweep.written"),
]
"""Points that every run of the command reaches."""

GROUPS = {
    "web and supervisor": (
        CONTROL_PLANE_POINTS,
        "supervisor",
        ("forks", "honest", "refuses_load", "dies_in_turn", "ignores_term"),
    ),
    "suspensions": (SUSPENSION_POINTS, "supervisor", ("reaches_limit",)),
    "agentctl": (
        AGENTCTL_POINTS,
        "supervisor",
        (
            *("honest", "hangs_at_load", "floods", "slow_start", "forgets", "lies_about_load", "stderr_flood"),
            *("hangs_at_initialize", "garbage", "relaunches_itself", "big_line", "no_load"),
            *("loads_without_replay", "refuses_turns", "says_nothing", "asks_by_id"),
        ),
    ),
    "recover_sessions": (
        COMMAND_POINTS,
        "recover_sessions",
        ("refuses_load", "forks", "honest", "slow_start"),
    ),
}


POSTGRESQL_GROUPS = {"recover_sessions"}
"""Groups that also run on PostgreSQL; ``python -m tests.chaos --database postgresql`` runs all of them there."""


@pytest.fixture
def chaos_deployment(tmp_path: Path) -> Iterator[ChaosDeployment]:
    """Yield a deployment whose processes a test starts, kills and starts again."""
    deployment = ChaosDeployment(tmp_path)
    deployment.prepare()
    yield deployment
    deployment.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.database) if name in POSTGRESQL_GROUPS else name for name in GROUPS]
)
def test_no_kill_loses_or_repeats_anything(chaos_deployment: ChaosDeployment, name: str) -> None:
    points, process, behaviours = GROUPS[name]
    group = Group(points, [BEHAVIOURS[one] for one in behaviours], mode="", process=process)
    outcome = run_group(chaos_deployment, group)

    assert not outcome.violations, "\n".join([*outcome.violations, *outcome.logs])
    assert not group.unreached(outcome)


@pytest.mark.any_database
def test_false_load_claim_is_detected_although_the_answer_was_lost(
    chaos_deployment: ChaosDeployment, tmp_path: Path
) -> None:
    chaos_deployment.control_plane.start({"web": {}, "supervisor": {}})
    chaos_deployment.control_plane.wait_until_ready()
    session = chaos_deployment.create_session(BEHAVIOURS["lies_about_load"], "remember walrus")
    session_steps.wait_until_idle(session)
    session_steps.stop(session)
    chaos_deployment.control_plane.restart_with(
        "supervisor", crash_environment("supervisor.agent_started", tmp_path / "reached")
    )
    session_steps.prompt(session, "work 0.3")
    session_steps.wait_until_idle(session)

    assert (tmp_path / "reached" / "supervisor.agent_started").exists()
    assert session.row["error_code"] == "context_mismatch"
    kinds = [row["kind"] for row in session.rows("continuity_receipts", "created_at") if row["launch_id"]]
    assert kinds == ["fresh", "failed"]


def test_groups_cover_every_crash_point_and_every_behaviour() -> None:
    assert {behaviour for _, _, behaviours in GROUPS.values() for behaviour in behaviours} == set(BEHAVIOURS)
    assert {point for points, _, _ in GROUPS.values() for point in points} == set(crash_points.POINT_NAMES)
