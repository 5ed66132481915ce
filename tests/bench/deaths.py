"""Time from the death of an agent or its agentctl until the agent is ready again by itself.

The floor is the agent's own spawn, ``initialize`` and ``session/load`` over bare pipes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import time
import uuid
from pathlib import Path

from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.plugins import agent_type
from sessions_app.board.services import tasks
from sessions_app.kernel.rules.states import SessionState
from sessions_app.models import ContinuityReceipt, TaskSession, Turn
from sessions_app.prompts import services as prompts
from tests.bench.figures import Figure, in_turn
from tests.bench.latencies import supervising
from tests.bench.resumes import bare_start, wait_for_commit
from tests.bench.world import World
from tests.waiting import eventually

PATIENCE = 60.0
TIMES_BARE = 1.5
BEYOND = {"agent": 0.1, "agentctl": 0.25}
"""Seconds that a recovery may take beyond ``TIMES_BARE`` times the floor, by what died."""
SNAPSHOT_LIMIT = 5.0


def to_ready(world: World, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure ``rounds`` deaths of each kind; figures are medians."""
    world.empty()
    task = world.task("Dies")
    task.save()
    taken: dict[str, list[float]] = {"agent": [], "agentctl": []}
    bare: list[float] = []
    snapshots: list[Figure] = []
    with supervising():
        session = tasks.create_session(
            world.user, task, world.profile, world.executor, prompt="remember heron", policy="auto"
        )
        _wait_for_turns(session, 1)
        try:
            for number in range(rounds):
                bare.append(_bare(session))
                for offset, (kind, seconds) in enumerate(taken.items()):
                    seconds.append(_death(session, kind))
                    # Includes a turn, because an agent that dies repeatedly without one is restarted after ever longer
                    # delays.
                    prompts.queue_prompt(session.id, uuid.uuid4().hex, "recall", world.user)
                    _wait_for_turns(session, 2 * number + offset + 2)
            snapshots.append(_snapshot(world, session, rounds, limited=limited))
        finally:
            world.stop(session)
    rows = [row for kind, seconds in taken.items() for row in _figures(kind, seconds, bare, limited=limited)]
    return [*rows, *snapshots]


def _snapshot(world: World, session: TaskSession, rounds: int, *, limited: bool) -> Figure:
    """Measure the snapshot taken before a restart after an interrupted turn, beside ``git stash create``."""
    root = Path(ExecutorRunning.objects.get(session=session).workspace_path)
    git = WorkspaceGit(root, {})

    def bare() -> None:
        subprocess.run(["git", "-C", str(root), "stash", "create"], check=True, stdout=subprocess.DEVNULL)

    def ours() -> None:
        take_snapshot(git, "bench", world.home / "snapshot.index", "asked")

    ours()
    seconds, floor = map(statistics.median, asyncio.run(in_turn(rounds, ours, bare)))
    limit = SNAPSHOT_LIMIT if limited else None
    return Figure("snapshot of a small clean repository", seconds, "`git stash create`", floor, limit=limit)


def _figures(kind: str, taken: list[float], bare: list[float], *, limited: bool) -> list[Figure]:
    seconds, floor = statistics.median(taken), statistics.median(bare)
    row, most = f"kill -9 of the {kind}: ready again", TIMES_BARE * floor + BEYOND[kind]
    return [
        Figure(row, seconds, "its spawn + initialize + load", floor),
        Figure(
            row, seconds, f"{TIMES_BARE} times that + {BEYOND[kind] * 1000:g} ms", most, limit=1.0 if limited else None
        ),
    ]


def _wait_for_turns(session: TaskSession, number: int) -> None:
    runs = Turn.objects.filter(session=session, state="completed")
    eventually(lambda: runs.count() >= number, timeout=PATIENCE, describe=f"{number} turns have ended")


def _death(session: TaskSession, kind: str) -> float:
    """Return the seconds from SIGKILL until the agent takes prompts."""
    receipts = ContinuityReceipt.objects.filter(session=session).exclude(kind="failed")
    before = receipts.count()
    pid = _pid(session, kind)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    ready = TaskSession.objects.filter(id=session.id, state=SessionState.WAITING_FOR_INPUT).exclude(launch_id="")
    wait_for_commit(lambda: receipts.count() > before and ready.exists())
    return time.perf_counter() - began


def _pid(session: TaskSession, kind: str) -> int:
    execution = ExecutorRunning.objects.get(session=session)
    if kind == "agentctl":
        assert execution.pid is not None
        return execution.pid
    return next(one.pid for one in identity.find_marked(str(execution.id)) if _is_agent(one.pid))


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline") as command_line:  # noqa: PTH123  (quickly)
            return "demo_agent" in command_line.read()
    except OSError:
        return False


def _bare(session: TaskSession) -> float:
    execution = ExecutorRunning.objects.get(session=session)
    profile = session.agent_profile
    environment = {**os.environ, **agent_type(profile.agent_type).env, **profile.env}
    return bare_start(profile.argv(execution.runtime), environment, execution.workspace_path, execution.resume_token)
