"""The benchmarks run from end to end; people and ``make bench`` judge the figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.bench.keeping import BenchFile
from tests.bench.run import PARTS, TOKEN_PARTS
from tests.services import ROOT, missing


def has(*services: str) -> bool:
    return not any(map(missing, services))


GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "sweeps": (
        *("sweep", "sweep-kept", "sweep-troubled", "sweep-losses", "restart"),
        *("dbos", "jupyterhub", "tmux", "pods"),
    ),
    "events": ("journal", "ingest", "flooding", "queries", "catching-up", "catching-up-pg", "latency"),
    "processes": ("memory", "idle", "launch", "dense", "death", "storm"),
    "agents": ("resume", *TOKEN_PARTS),
    "work": ("workflow", "workflow-text", "workspace", "review", "board", "search", "history", "live", "growth"),
    "pages": ("long-page", "session-page", "session-paint", "weights", "fan-out"),
    "screens": ("screen", "talking", "terminal"),
}
"""Parts that run one after the other in one process."""
ROWS: Final[Mapping[str, Sequence[str]]] = {
    "sweeps": (
        "sweep of 20 live",
        "sweep of 20, kept",
        "aiohttp + bulk_update",
        "restart, 20 attached again",
        *(("restart, 20 attached again, postgresql", "DBOS 3.4.0, 20 workflows") if has("peers", "postgres") else ()),
        *(("JupyterHub 6.1.1, SQLite, local processes",) if has("peers") else ()),
        *(("restart, 1 attached again",) if has("tmux") else ()),
        "the same, 2 refuse, 1 hang",
        "sweep that writes 3 losses",
        *(
            (
                "session in a Pod, stand-in: start",
                "restart, 2 Pods attached again, stand-in",
                "sweep of 12 Pods, 2 of them real, stand-in",
            )
            if has("kubernetes stand-in")
            else ()
        ),
    ),
    "events": (
        "500 lines of an agent, durable",
        "journal, 1 line until durable",
        "journal, 64 lines until durable",
        "journal, 1000 lines until durable",
        "ingest, 1 x 64 lines",
        "ingest, 20 x 50 lines",
        "catching up 500, 50% text, sqlite",
        "catching up 500, 95% text, sqlite",
        *(("catching up 500, 95% text, postgresql",) if has("postgres") else ()),
        "agent to event log, p50",
        "agent to event log, p95",
    ),
    "processes": (
        "agentctl, idle",
        "idle control plane, memory",
        "idle control plane, CPU a second",
        "idle control plane: a killed agentctl is noticed",
        "idle session: agentctl and guard, private",
        "2 idle sessions, agents not counted",
        "agentctl: order to first answer",
        "agentctl: CPU to first answer",
        "kill -9 of the agent: ready again",
        "kill -9 of the agentctl: ready again",
        "snapshot of a small clean repository",
        "25 + 1 start: CPU of a start",
        "25 + 1 start: CPU of a start, supervisor",
        "25 + 1 start: CPU of a start, launcher, agentctl, guard",
    ),
    "agents": (
        *(
            ("codex-acp killed: resumed", "codex-acp killed: prompt answered", "codex-acp and agentctl killed: resumed")
            if has("codex-acp", "acpx")
            else ()
        ),
        *(("codex loaded, cold cache", "codex loaded, warm cache") if has("codex-acp") else ()),
    ),
    "work": (
        "workflow, each of 2 shell nodes",
        "workflow, a text of 1,000 nodes checked",
        "workflow, a text of 800 kB of {{ checked",
        "4 MB repository, its objects copied once",
        "4 MB repository, a workspace",
        "board of 20 tasks, CPU",
        "30 changed files, listed",
        "30 changed files, the lines of the first 20",
        "search of a rare word in 400 messages, CPU",
        "board, tasks",
        "history: board, 4 finished",
        "history: metrics, 4 finished",
        "live sessions: sweep, each of 4",
        "live sessions: ingest, each of 4",
    ),
    "pages": (
        "session page, 50 messages",
        "session page of 250 messages, CPU",
        *(("session page of 250 messages, first paint",) if has("chromium") else ()),
        *(("session at first paint, compressed", "board at first paint, compressed") if has("bundles") else ()),
        "one event to 20 sockets",
        "group_send, in memory",
    ),
    "screens": (
        "3 agents, 10 a second each, to the socket, p95",
        "3 agents that talk: web and supervisor at the end",
        *(("agent to screen, 200 a second, p50", "agent to screen, 200 a second, p95") if has("chromium") else ()),
        "terminal, 1 MB to a socket",
        "keystroke echo, p95",
        *(("terminal, 1 MB to the screen",) if has("chromium", "terminal") else ()),
    ),
}
FLOORS: Final = (
    "bare GET /status, each",
    "append 1 line + fdatasync",
    "append 100 lines + fdatasync, each line",
    "SQLite commit of 1 row",
    "SQLite commit of 10,000 rows, each row",
)


def test_every_part_runs_here() -> None:
    assert sorted(part for group in GROUPS.values() for part in group) == sorted(PARTS)


@pytest.mark.parametrize("group", GROUPS)
def test_quick_run_has_every_row(group: str, tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    argv = [sys.executable, "-W", "error", "-m", "tests.bench", "--quick", "--out", str(kept), "--only", *GROUPS[group]]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row for row in (*ROWS[group], *FLOORS) if row not in done.stdout] == []
    assert BenchFile.read(kept).quick
