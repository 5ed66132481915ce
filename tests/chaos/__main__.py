"""``python -m tests.chaos``: the whole kill-point matrix, then a seeded random walk of kills."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from executors_app.crash_points import CRASH_POINTS
from tests import postgresql
from tests.chaos.behaviours import BEHAVIOURS, why_unreachable
from tests.chaos.deployment import ChaosDeployment
from tests.chaos.matrix import Group, Outcome, run
from tests.chaos.random_walk import RandomWalk
from tests.chaos.report import Bar, matrix_table, summary
from tests.drills.deployment import Deployment
from tests.environment import DATABASE_URL
from tests.workflows.deployed_runs import Desk
from tests.workflows.kill_drill import drill

NAMES = [point.name for point in CRASH_POINTS]
TOGETHER = 6
"""The number of deployments that share the command's points."""
BY_COMMAND = ("refuses_load", "forks", "honest", "honest", "honest", "honest", "slow_start", "ignores_term", "honest")


def every_group(prefixes: Sequence[str]) -> list[Group]:
    """All cells: each point alone with every behaviour; the command's points a few at a time."""
    agents = list(BEHAVIOURS.values())
    groups = [Group([name], [one for one in agents if not why_unreachable(name, one)]) for name in NAMES]
    groups = [group for group in groups if group.behaviours]
    by_command = [point.name for point in CRASH_POINTS if "recover_sessions" in point.processes]
    some = [BEHAVIOURS[name] for name in BY_COMMAND]
    dealt = [by_command[part::TOGETHER] for part in range(TOGETHER)]
    groups += [Group(points, some, "", "recover_sessions") for points in dealt]
    return [group for group in groups if any(point.startswith(tuple(prefixes) or "") for point in group.points)]


def run_matrix(world: ChaosDeployment, groups: Sequence[Group]) -> tuple[Outcome, list[Group]]:
    """Run all cells; return the outcome and the cells that were not reached."""
    outcome, unreached = Outcome(), list[Group]()
    if not groups:
        return outcome, unreached
    bar = Bar("matrix", len(groups))
    for number, group in enumerate(groups):
        bar.show(number, group.points[0])
        found = run(world, group)
        unreached += group.unreached(found)
        outcome.add(found)
    bar.show(len(groups))
    return outcome, unreached


def killed_runs(home: Path, seed: int, kills: int) -> list[str]:
    """Kill that many workflow runs in their third iteration, at moments drawn from ``seed``."""
    violations, made = list[str](), Deployment(home)
    if not kills:
        return violations
    home.mkdir()
    bar = Bar("runs  ", kills)
    try:
        made.prepare()
        made.serve()
        desk = Desk(made)
        for number in range(kills):
            bar.show(number)
            violations += [f"killed_run: {what}" for what in drill(desk, seed + number)]
    finally:
        made.close()
    bar.show(kills)
    return violations


def main() -> int:
    """Run what the arguments ask for; return 1 if an invariant was violated or a cell not reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the walk; drawn and told if left out")
    parser.add_argument("--kills", type=int, default=200, help="of the walk; 0 leaves it out (default: %(default)s)")
    parser.add_argument(
        "--workflow-kills", type=int, default=20, help="runs of a workflow, each killed once (default: %(default)s)"
    )
    parser.add_argument("--no-matrix", action="store_true", help="the walk alone")
    parser.add_argument("--points", nargs="*", default=[], metavar="PREFIX", help="of the matrix, only these")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="(default: %(default)s)")
    options = parser.parse_args()
    if options.database == "postgresql":
        os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    sys.stderr.write(f"seed {seed}\n")
    groups = [] if options.no_matrix else every_group(options.points)
    with tempfile.TemporaryDirectory(prefix="kandev-chaos-") as home:
        world = ChaosDeployment(Path(home))
        try:
            world.prepare()
            outcome, unreached = run_matrix(world, groups)
            if options.kills:
                bar = Bar("walk  ", options.kills)
                outcome.add(RandomWalk(world, seed, bar.show).run(options.kills))
        finally:
            world.close()
        outcome.violations += killed_runs(Path(home) / "workflows", seed, options.workflow_kills)
    return _tell(groups, outcome, unreached, options.kills, seed)


def _tell(groups: Sequence[Group], outcome: Outcome, unreached: Sequence[Group], kills: int, seed: int) -> int:
    if groups:
        sys.stdout.write(matrix_table(groups, outcome) + "\n")
    for line in (*outcome.violations, *(f"unreached: {cell}" for cell in unreached)):
        sys.stdout.write(f"{line}\n")
    if outcome.stories:
        story = Path(tempfile.mkstemp(prefix="kandev-chaos-", suffix=".txt")[1])
        story.write_text("\n\n".join(outcome.stories))
        sys.stdout.write(f"what happened: {story}\n")
    sys.stdout.write(summary(kills, seed, outcome, unreached) + "\n")
    return 1 if outcome.violations or unreached else 0


if __name__ == "__main__":
    sys.exit(main())
