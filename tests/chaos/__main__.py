"""``python -m tests.chaos``: the whole kill-point matrix, then a seeded random walk of kills."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executors_app.machine.crash_points import POINT_NAMES, processes_of
from tests import postgresql
from tests.chaos import limit_drill
from tests.chaos.behaviours import BEHAVIOURS, why_unreachable
from tests.chaos.deployment import ChaosDeployment
from tests.chaos.matrix import Group, Outcome, run_group
from tests.chaos.random_walk import RandomWalk
from tests.chaos.report import ProgressBar, matrix_table, summary
from tests.drills.deployment import Deployment
from tests.environment import DATABASE_URL
from tests.workflows.deployed_runs import DeployedWorkflows
from tests.workflows.kill_drill import drill

COMMAND_GROUPS = 6
"""The number of groups that the command's crash points are split into."""
COMMAND_BEHAVIOURS = (
    "refuses_load",
    "forks",
    "honest",
    "honest",
    "honest",
    "honest",
    "slow_start",
    "ignores_term",
    "honest",
)


def all_groups(prefixes: Sequence[str]) -> list[Group]:
    """Return all groups: each point alone with every behaviour, and the command's points a few at a time."""
    agents = list(BEHAVIOURS.values())
    groups = [Group([name], [one for one in agents if not why_unreachable(name, one)]) for name in POINT_NAMES]
    groups = [group for group in groups if group.behaviours]
    command_points = [name for name in POINT_NAMES if "recover_sessions" in processes_of(name)]
    behaviours = [BEHAVIOURS[name] for name in COMMAND_BEHAVIOURS]
    point_groups = [command_points[part::COMMAND_GROUPS] for part in range(COMMAND_GROUPS)]
    groups += [Group(points, behaviours, "", "recover_sessions") for points in point_groups]
    return [group for group in groups if any(point.startswith(tuple(prefixes) or "") for point in group.points)]


def run_matrix(deployment: ChaosDeployment, groups: Sequence[Group]) -> tuple[Outcome, list[Group]]:
    """Run all groups; return the outcome and the points that were not reached."""
    outcome, unreached = Outcome(), list[Group]()
    if not groups:
        return outcome, unreached
    bar = ProgressBar("matrix", len(groups))
    for number, group in enumerate(groups):
        bar.show(number, group.points[0])
        found = run_group(deployment, group)
        unreached += group.unreached(found)
        outcome.add(found)
    bar.show(len(groups))
    return outcome, unreached


def kill_workflow_runs(home: Path, seed: int, kills: int) -> list[str]:
    """Kill ``kills`` workflow runs in their third iteration, at times drawn from ``seed``; return the violations."""
    violations, workflow_deployment = list[str](), Deployment(home)
    if not kills:
        return violations
    home.mkdir()
    bar = ProgressBar("runs  ", kills)
    try:
        workflow_deployment.prepare()
        workflow_deployment.serve()
        deployed = DeployedWorkflows(workflow_deployment)
        for number in range(kills):
            bar.show(number)
            violations += [f"killed_run: {what}" for what in drill(deployed, seed + number)]
    finally:
        workflow_deployment.close()
    bar.show(kills)
    return violations


def kill_at_resets(home: Path, seed: int, sessions: int) -> list[str]:
    """Let ``sessions`` agents reach a usage limit while processes die at random; return the violations."""
    if not sessions:
        return []
    home.mkdir()
    deployment = ChaosDeployment(home, KANDEV_IDLE_SLEEP="2")
    bar = ProgressBar("resets", sessions)
    bar.show(0)
    try:
        deployment.prepare()
        return [f"reset: {what}" for what in limit_drill.drill(deployment, sessions, seed)]
    finally:
        deployment.close()
        bar.show(sessions)


def kill_pushes(home: Path) -> list[str]:
    """Kill pushes over http and ssh at each of their points, and repeat them; return the violations."""
    home.mkdir()
    deployment, bar = Deployment(home), ProgressBar("pushes", 1)
    bar.show(0)
    deployment.prepare()
    script = "import json; from tests.drills.row_kills import run_all; print(json.dumps(run_all('push')))"
    done = deployment.manage("shell", "-v", "0", "-c", script, timeout=600)
    bar.show(1)
    if done.returncode:
        return [f"pushes: {done.stderr[-500:]}"]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    if not seen:
        return ["pushes: none was made"]
    return [f"push: {name}: {found}" for name, found in seen.items() if not _is_pushed_once(found)]


def _is_pushed_once(found: dict[str, Any]) -> bool:
    """Whether the process died, and the server has the commit and has started CI once, however often it is repeated."""
    is_pushed = found["repeated"][-2:] == [True, ["run"]]
    return is_pushed and found["status"] == -signal.SIGKILL and bool(found["again"] == found["repeated"])


def main() -> int:
    """Run the command; return 1 if an invariant was violated or a crash point was not reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="seed of the random walk (default: random; printed)")
    parser.add_argument(
        "--kills", type=int, default=200, help="kills of the random walk; 0 skips it (default: %(default)s)"
    )
    parser.add_argument(
        "--workflow-kills",
        type=int,
        default=20,
        help="number of workflow runs, each killed once (default: %(default)s)",
    )
    parser.add_argument(
        "--resets",
        type=int,
        default=50,
        help="number of sessions that reach a usage limit, under random kills (default: %(default)s)",
    )
    parser.add_argument("--no-matrix", action="store_true", help="skip the matrix")
    parser.add_argument(
        "--points",
        nargs="*",
        default=[],
        metavar="PREFIX",
        help="only the crash points of the matrix that begin with these",
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="(default: %(default)s)")
    options = parser.parse_args()
    if options.database == "postgresql":
        os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    sys.stderr.write(f"seed {seed}\n")
    groups = [] if options.no_matrix else all_groups(options.points)
    with tempfile.TemporaryDirectory(prefix="kandev-chaos-") as home:
        deployment = ChaosDeployment(Path(home))
        try:
            deployment.prepare()
            outcome, unreached = run_matrix(deployment, groups)
            if options.kills:
                bar = ProgressBar("walk  ", options.kills)
                outcome.add(RandomWalk(deployment, seed, bar.show).run(options.kills))
        finally:
            deployment.close()
        if groups:
            outcome.violations += kill_pushes(Path(home) / "pushes")
        outcome.violations += kill_at_resets(Path(home) / "resets", seed, options.resets)
        outcome.violations += kill_workflow_runs(Path(home) / "workflows", seed, options.workflow_kills)
    return _print_report(groups, outcome, unreached, options.kills, seed)


def _print_report(groups: Sequence[Group], outcome: Outcome, unreached: Sequence[Group], kills: int, seed: int) -> int:
    if groups:
        sys.stdout.write(matrix_table(groups, outcome) + "\n")
    for line in (*outcome.violations, *(f"unreached: {cell}" for cell in unreached)):
        sys.stdout.write(f"{line}\n")
    if outcome.logs:
        log_file = Path(tempfile.mkstemp(prefix="kandev-chaos-", suffix=".txt")[1])
        log_file.write_text("\n\n".join(outcome.logs))
        sys.stdout.write(f"logs: {log_file}\n")
    sys.stdout.write(summary(kills, seed, outcome, unreached) + "\n")
    return 1 if outcome.violations or unreached else 0


if __name__ == "__main__":
    sys.exit(main())
