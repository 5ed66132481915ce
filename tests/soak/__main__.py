"""``make soak``: hundreds of sessions, kills of every process at random, and checks of the invariants.

Exits with code 1 if an invariant was violated.
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
from tests.chaos.report import ProgressBar
from tests.environment import DATABASE_URL
from tests.soak.deployment import SoakDeployment, remaining_processes
from tests.soak.report import report, verdict
from tests.soak.soak import Result, Soak
from tests.supervisor import fake_agentctl_server

TABLE_WIDTH = 150


def main() -> int:
    """Run the test and print its report; return the exit code."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # otherwise the processes that it started would keep running
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    sys.stderr.write(f"seed {seed}\n")
    server = _start_server(options.database)
    bar = ProgressBar("soak", round(options.seconds))
    with tempfile.TemporaryDirectory(prefix="kandev-soak-") as home, fake_agentctl_server.serving() as url:
        deployment = SoakDeployment(Path(home), url)
        try:
            deployment.prepare()
            soak = Soak(deployment, seed, server, lambda elapsed, what: bar.show(min(round(elapsed), bar.total), what))
            result = soak.run(options.seconds, options.sessions, options.agents)
            log = deployment.log()
        finally:
            deployment.close()
        result.violations["no process is left running"] = remaining_processes(Path(home))
    Console(width=None if sys.stdout.isatty() else TABLE_WIDTH).print(report(result, options.seconds, seed))
    if not result.passed:
        sys.stdout.write(f"violations and process logs: {_write_log_file(result, log)}\n")
    sys.stdout.write(f"{verdict(result)}\n")
    return 0 if result.passed else 1


def _write_log_file(result: Result, log: str) -> Path:
    """Write the violations and the log to a temporary file and return its path."""
    log_file = Path(tempfile.mkstemp(prefix="kandev-soak-", suffix=".log")[1])
    violations = [f"{name}: {one}\n" for name, found in result.violations.items() for one in found]
    log_file.write_text("".join(violations) + log)
    return log_file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="duration of users and kills (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=300, help="sessions on fake agentctls (default: %(default)s)")
    parser.add_argument(
        "--agents", type=int, default=4, help="additional sessions with real agents (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of all random choices (default: random; printed)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="(default: %(default)s)")
    return parser


def _start_server(database: str) -> postgresql.Server | None:
    """Return the PostgreSQL server of the deployment, which the test may stop; None for the embedded database."""
    if database == "sqlite":
        return None
    os.environ[DATABASE_URL] = postgresql.server().url("kandev")
    return postgresql.server()


if __name__ == "__main__":
    sys.exit(main())
