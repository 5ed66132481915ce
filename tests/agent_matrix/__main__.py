"""Measures every agent that is installed here, or those that are named, and writes ``docs/agent-matrix.md``.

``python -m tests.agent_matrix [AGENT ...]``; with names, the table has these rows alone and is only printed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.agent_matrix.measure import HOLD, ROUNDS, measure
from tests.agent_matrix.table import DOCUMENT, matrix_document
from tests.real_agents.homes import FORGETFUL, REAL_AGENTS
from tests.services import missing


def main(named: list[str]) -> int:
    """Measure and write; returns the exit status."""
    console, rows = Console(markup=False, highlight=False, soft_wrap=True), []
    with tempfile.TemporaryDirectory(prefix="agent-matrix-", ignore_cleanup_errors=True) as scratch:
        for published in named or sorted({**REAL_AGENTS, **FORGETFUL}):
            if lacking := missing(published):
                console.print(f"{published}: {lacking}")
                continue
            row = measure(published, Path(scratch) / published)
            rows.append(row)
            console.print(f"{published} {row.version}: {row.cells}", *row.failures, sep="\n  ")
    if not rows:
        console.print("No agent is installed here: run make agents")
        return 1
    machine = f"{os.cpu_count()} cores and a load of {os.getloadavg()[2]:.0f}"
    text = matrix_document(rows, day=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine, rounds=ROUNDS, hold=HOLD)
    if named:
        console.print(text)
    else:
        DOCUMENT.write_text(text, encoding="utf-8")
        console.print(f"wrote {DOCUMENT}")
    return 0


sys.exit(main(sys.argv[1:]))
