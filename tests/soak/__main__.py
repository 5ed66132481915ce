"""``make soak``: hundreds of sessions, random deaths of everything, and what must hold all the same.

Exit code 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests import postgresql
from tests.chaos.report import Bar
from tests.environment import DATABASE_URL
from tests.soak.deployment import SoakDeployment, left_running
from tests.soak.report import report, verdict
from tests.soak.soak import Result, Soak
from tests.supervisor import fake_agentctl_server

WIDE = 150


def main() -> int:
    """Run it, tell of it."""
    asked = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else what it has started would outlive it
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    sys.stderr.write(f"seed {seed}\n")
    server = _server(asked.database)
    bar = Bar("soak", round(asked.seconds))
    with tempfile.TemporaryDirectory(prefix="kandev-soak-") as home, fake_agentctl_server.serving() as url:
        world = SoakDeployment(Path(home), url)
        try:
            world.prepare()
            soak = Soak(world, seed, server, lambda passed, what: bar.show(min(round(passed), bar.total), what))
            result = soak.run(asked.seconds, asked.sessions, asked.agents)
            log = world.log()
        finally:
            world.close()
        result.broken["nothing is left running"] = left_running(Path(home))
    Console(width=None if sys.stdout.isatty() else WIDE).print(report(result, asked.seconds, seed))
    if not result.holds:
        sys.stdout.write(f"all that broke, and the log of its processes: {_story(result, log)}\n")
    sys.stdout.write(f"{verdict(result)}\n")
    return 0 if result.holds else 1


def _story(result: Result, log: str) -> Path:
    """A file for whoever looks for the reason."""
    story = Path(tempfile.mkstemp(prefix="kandev-soak-", suffix=".log")[1])
    broken = [f"{name}: {one}\n" for name, found in result.broken.items() for one in found]
    story.write_text("".join(broken) + log)
    return story


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="of users and kills (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=300, help="on fake agentctls (default: %(default)s)")
    parser.add_argument("--agents", type=int, default=4, help="real ones beside them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of all choices; drawn and told if left out")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="(default: %(default)s)")
    return parser


def _server(database: str) -> postgresql.Server | None:
    """The PostgreSQL of this process's deployments, which may die; None for the embedded database."""
    if database == "sqlite":
        return None
    os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    return postgresql.server()


if __name__ == "__main__":
    sys.exit(main())
