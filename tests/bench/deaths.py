"""From the death of an agent, or of all that it runs in, until it is ready again by itself.

The floor is what nobody can save: an interpreter that starts, and an agent that answers ``initialize``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from executors_app.agentctl.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.domain.states import SessionState
from sessions_app.models import ContinuityReceipt, Run, TaskSession
from sessions_app.services import tasks
from tests.bench.figures import Figure
from tests.bench.latencies import supervising
from tests.bench.world import World
from tests.waiting import eventually

PATIENCE = 60.0
LOOK_EVERY = 0.005
AGENT = [sys.executable, "-m", "executors_app.demo_agent"]
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}}


def to_ready(world: World, rounds: int) -> list[Figure]:
    """Medians of so many deaths of either kind."""
    world.empty()
    task = world.task("Dies")
    task.save()
    taken: dict[str, list[float]] = {"agent": [], "agentctl": []}
    bare: list[float] = []
    with supervising():
        session = tasks.create_session(
            world.user, task, world.profile, world.executor, prompt="remember heron", policy="auto"
        )
        runs = Run.objects.filter(session=session, state="completed")
        eventually(runs.exists, timeout=PATIENCE, describe="the first turn is over")
        try:
            for _ in range(rounds):
                bare.append(_bare())
                for kind, seconds in taken.items():
                    seconds.append(_death(session, kind))
        finally:
            world.stop(session)
    floor = "interpreter + initialize, bare"
    return [
        Figure(f"kill -9 of the {kind}: ready again", statistics.median(seconds), floor, statistics.median(bare))
        for kind, seconds in taken.items()
    ]


def _death(session: TaskSession, kind: str) -> float:
    """Seconds from SIGKILL to an agent that takes prompts; the count of tries is set back, as a turn would."""
    TaskSession.objects.filter(id=session.id).update(start_attempts=0)
    receipts = ContinuityReceipt.objects.filter(session=session).exclude(kind="failed")
    before = receipts.count()
    pid = _pid(session, kind)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    ready = TaskSession.objects.filter(id=session.id, state=SessionState.WAITING_FOR_INPUT).exclude(launch_id="")
    _at_once(lambda: receipts.count() > before and ready.exists())
    return time.perf_counter() - began


def _pid(session: TaskSession, kind: str) -> int:
    execution = ExecutorRunning.objects.get(session=session)
    if kind == "agentctl":
        assert execution.pid is not None
        return execution.pid
    return next(one.pid for one in identity.find_marked(str(execution.id)) if _is_agent(one.pid))


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline") as told:  # noqa: PTH123  (quickly)
            return "demo_agent" in told.read()
    except OSError:
        return False


def _at_once(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_there():
        assert time.monotonic() < deadline, "it did not come back in time"
        time.sleep(LOOK_EVERY)


def _bare() -> float:
    began = time.perf_counter()
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline()
        seconds = time.perf_counter() - began
        process.kill()
    return seconds
