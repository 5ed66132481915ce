"""Measure every installed agent, or the named ones, and write ``docs/agent-matrix.md``.

``python -m tests.agent_matrix [--drills] [AGENT ...]``; with names, the table has only these rows and is only printed.
``--drills`` runs the restart drills and writes their table; it fails if an agent does not behave as expected.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.agent_matrix.drilled_agents import AGENTS, run_drills, surprises
from tests.agent_matrix.measure import HOLD, ROUNDS, measure
from tests.agent_matrix.table import DOCUMENT, Row, drills_document, matrix_document, with_drills, with_matrix
from tests.real_agents.homes import FORGETFUL, REAL_AGENTS
from tests.services import missing

_console = Console(markup=False, highlight=False, soft_wrap=True)


def _rows(agents: Sequence[str], run: Callable[[str, Path], Row]) -> list[Row]:
    """Run each installed agent in its own scratch directory; return the rows."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="agent-matrix-", ignore_cleanup_errors=True) as scratch:
        for published in agents:
            if lacking := missing(published):
                _console.print(f"{published}: {lacking}")
                continue
            row = run(published, Path(scratch) / published)
            rows.append(row)
            _console.print(f"{published} {row.version}: {row.cells}", *row.failures, sep="\n  ")
    return rows


def main() -> int:
    """Measure the agents and write the document; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.agent_matrix")
    parser.add_argument("--drills", action="store_true")
    parser.add_argument("agents", nargs="*", metavar="AGENT")
    options = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # killed agents close their connections
    day, known = f"{datetime.now(UTC):%Y-%m-%d}", AGENTS if options.drills else {**REAL_AGENTS, **FORGETFUL}
    if unknown := set(options.agents) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Available: {', '.join(sorted(known))}.")
    rows = _rows(options.agents or sorted(known), run_drills if options.drills else measure)
    if not rows:
        _console.print("No agent is installed here: run make agents")
        return 1
    text = DOCUMENT.read_text(encoding="utf-8")
    found = surprises(rows) if options.drills else []
    if options.drills:
        part = drills_document(rows, day=day)
        text = with_drills(text, part)
    else:
        machine = f"{os.cpu_count()} cores and a load of {os.getloadavg()[2]:.0f}"
        part = matrix_document(rows, day=day, machine=machine, rounds=ROUNDS, hold=HOLD)
        text = with_matrix(text, part)
    if options.agents:
        _console.print(part)
    else:
        DOCUMENT.write_text(text, encoding="utf-8")
        _console.print(f"wrote {DOCUMENT}")
    _console.print(*found, sep="\n")
    return 1 if found else 0


sys.exit(main())
