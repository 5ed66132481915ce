"""Many agents that write at once: from each one's output to the socket of a page that shows its session.

Supervisor, web, agentctls and agents are real; a client of the same sockets takes the place of the browsers.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import orjson

from executors_app.agentctl.process.guard_process import children_of, command_line_of
from executors_app.machine.process import execution_processes, identity
from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.board.services import tasks
from sessions_app.models import Task, TaskSession
from sessions_app.prompts import services as prompts
from tests.bench.fanout import SOCKETS_PER_USER, handshake, serving, tokens_of
from tests.bench.figures import Figure
from tests.bench.latencies import quantile, supervising
from tests.bench.memory import resident
from tests.bench.world import World
from tests.waiting import eventually

RATE = 10
"""Ticks per second of each agent."""
BUDGET = 0.1
"""Seconds within which 95 of 100 ticks should reach the socket."""
LIMIT_OF_FEW = 2.5
"""Maximum with a fifth of the agents, as a multiple of that; docs/performance.md explains it."""
GROWTH_LIMIT = 1.1
"""Maximum memory at the end, as a multiple of that after a quarter of the time."""
START_TIMEOUT = 900.0
"""Timeout in seconds until all agents are running."""
RAMP = 20.0
"""Seconds in which all turns begin; they are not measured."""
TALKER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("talker.py")))
LAST_OUTPUT_TIMEOUT = 60.0
"""Timeout in seconds for the last output to arrive."""


def of_many(world: World, count: int, seconds: float, *, limited: bool) -> list[Figure]:
    """Measure the age of the output at the sockets, and the memory: first a fifth of the agents talk, then all."""
    world.empty()
    with _allowed(world, count), _ended_at_last(), serving("kandev.asgi:application") as port, supervising():
        processes = _forked_from_preloaded_server()
        assert len(processes) == 2, "web and supervisor"
        sessions = _started(world, count)
        tokens = tokens_of(world, -(-count // SOCKETS_PER_USER))
        paths = [(f"/ws/sessions/{session.id}/", tokens[n // SOCKETS_PER_USER]) for n, session in enumerate(sessions)]
        few = max(1, count // 5)
        with closing(Screens(port, paths)) as screens:
            waited_few, _ = _talk(world, screens, sessions[:few], seconds / 2, processes)
            waited, memory = _talk(world, screens, sessions, seconds, processes)
    return [
        *_delays(few, waited_few, limit=LIMIT_OF_FEW if limited else None),
        *_delays(count, waited, limit=None),
        Figure(
            f"{count} agents that talk: web and supervisor at the end",
            memory[-1],
            "after a quarter of the time",
            memory[0],
            "MB",
            limit=GROWTH_LIMIT if limited else None,
        ),
    ]


def _talk(
    world: World, screens: Screens, sessions: Sequence[TaskSession], seconds: float, processes: Sequence[int]
) -> tuple[list[float], list[float]]:
    for session in sessions:
        prompts.queue_prompt(session.id, f"talk-{len(sessions)}", f"work {RAMP + seconds:g} at {RATE}", world.user)
    return screens.watch(len(sessions), seconds, processes)


def _delays(count: int, waited: Sequence[float], *, limit: float | None) -> list[Figure]:
    row = f"{count} agents, {RATE} a second each, to the socket, {{}}"
    p50, p95 = quantile(waited, 0.5), quantile(waited, 0.95)
    return [
        Figure(row.format("p50"), p50, "the budget of p95", BUDGET),
        Figure(row.format("p95"), p95, "the budget", BUDGET, limit=limit),
    ]


@contextmanager
def _allowed(world: World, count: int) -> Iterator[None]:
    """Let ``count`` agents run at once; by default, their number depends on the memory of the machine."""
    executors = Executor.objects.filter(id=world.executor.id)
    executors.update(max_live=count)
    try:
        yield
    finally:
        executors.update(max_live=world.executor.max_live)


def _started(world: World, count: int) -> list[TaskSession]:
    profile = AgentProfile.objects.create(name="talker", agent_type="custom_acp", command=list(TALKER))
    rows = [world.task(f"Talk {number}") for number in range(count)]
    Task.objects.bulk_create(rows)
    sessions = [tasks.create_session(world.user, task, profile, world.executor) for task in rows]
    up = TaskSession.objects.exclude(launch_id="")
    eventually(lambda: up.count() == count, timeout=START_TIMEOUT, describe="all agents run")
    return sessions


def _forked_from_preloaded_server() -> list[int]:
    servers = [pid for pid in children_of(os.getpid()) if "tests.preloaded_server" in command_line_of(pid)]
    return [pid for server in servers for pid in children_of(server)]


@contextmanager
def _ended_at_last() -> Iterator[None]:
    """End all agents after the block, when no supervisor can start them again."""
    try:
        yield
    finally:
        found = execution_processes.find_all_processes()
        ours = [found[str(key)] for key in ExecutorRunning.objects.values_list("id", flat=True) if str(key) in found]
        identity.kill_all([process for one in ours for process in (*one.agentctl, *one.others)], 30)


class Screens:
    """Clients that each follow a session and record how old its output is when it arrives."""

    def __init__(self, port: int, paths: Sequence[tuple[str, str]]):
        self._waited: list[float] = []
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytearray] = {}
        self._silent: set[int] = set()
        """Those whose turn has not begun."""
        self._talking: set[int] = set()
        """Those whose turn has not ended."""
        for path, token in paths:
            one = handshake(port, path, token)
            self._sockets[one.fileno()], self._unread[one.fileno()] = one, bytearray()
            self._poll.register(one, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for one in self._sockets.values():
            one.close()

    def watch(self, count: int, seconds: float, processes: Sequence[int]) -> tuple[list[float], list[float]]:
        """Measure for ``seconds`` while the first ``count`` sessions talk, and read until their turns have ended.

        Returns the ages in seconds, and the processes' MB after a quarter of the time and at its end.
        """
        self._silent, self._talking = (set(list(self._sockets)[:count]) for _ in range(2))
        self._read_while(lambda: bool(self._silent), RAMP)
        self._waited, memory = [], []
        for share in (0.25, 0.75):
            until = time.monotonic() + share * seconds
            self._read_while(lambda until=until: time.monotonic() < until, seconds)  # type: ignore[misc]
            memory.append(sum(map(resident, processes)))
        waited = list(self._waited)
        assert len(self._talking) == count, "a turn ended too early"
        self._read_while(lambda: bool(self._talking), RAMP + LAST_OUTPUT_TIMEOUT)
        return waited, memory

    def _read_while(self, condition: Callable[[], bool], limit: float) -> None:
        began = time.monotonic()
        while condition():
            waiting = f"{len(self._silent)} turns have not begun, {len(self._talking)} have not ended"
            assert time.monotonic() - began <= limit, waiting
            for descriptor, _ in self._poll.poll(0.1):
                data = self._sockets[descriptor].recv(1 << 16)
                assert data, "a socket was closed"
                self._unread[descriptor] += data
                self._read_frames(descriptor)

    def _read_frames(self, descriptor: int) -> None:
        now = time.time()
        for code, data in _frames(self._unread[descriptor]):
            if code == 0x9:
                self._sockets[descriptor].sendall(_pong(data))
                continue
            frame = orjson.loads(data)
            payload = frame.get("payload") or {}
            if str(payload.get("append") or payload.get("text") or "").startswith("tick "):
                # The event has the time of the first of the pieces that were joined in it.
                self._waited.append(now - datetime.fromisoformat(frame["at"]).timestamp())
                self._silent.discard(descriptor)
            elif frame.get("event") == "session.run.completed":
                self._talking.discard(descriptor)


def _pong(data: bytes) -> bytes:
    """Return the frame that answers a ping, masked with zeros."""
    return bytes([0x8A, 0x80 | len(data)]) + bytes(4) + data


def _frames(unread: bytearray) -> Iterator[tuple[int, bytes]]:
    """Remove the complete frames of a server from ``unread``; yield code and content of each."""
    while len(unread) >= 2:
        size, start = unread[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(unread[2:start], "big")
        if len(unread) < start + size:
            return
        yield unread[0] & 0x0F, bytes(unread[start : start + size])
        del unread[: start + size]
