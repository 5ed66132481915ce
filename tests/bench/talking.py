"""Many agents that talk at once: from each one's words to the socket of a page that shows its session.

Supervisor, web, agentctls and agents are real; a client of the same sockets takes the place of the browsers.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import orjson

from executors_app.agentctl.process import execution_processes, identity
from executors_app.models import ExecutorRunning
from sessions_app.models import Task, TaskSession
from sessions_app.services import intents, tasks
from tests.bench.fanout import SEATS, handshake, serving, tokens_of
from tests.bench.figures import Figure
from tests.bench.latencies import quantile, supervising
from tests.bench.memory import resident
from tests.bench.world import World
from tests.drills.process_groups import descendants
from tests.waiting import eventually

RATE = 10
"""Things that each agent says a second."""
BUDGET = 0.1
"""Seconds until 95 of 100 are at the socket."""
GROWTH_LIMIT = 1.1
"""Memory at the end, beside that after a quarter of the time."""
TO_START = 900.0
"""Seconds for all agents to be up."""
LATE = 60.0
"""Seconds for the last words to come after they were said."""
PONG = b"\x8a\x80\0\0\0\0"
"""Masked with zeros."""


def of_many(world: World, count: int, seconds: float, *, limited: bool) -> list[Figure]:
    """``count`` agents that talk for so many seconds: how old their words are at the socket, and the memory of it."""
    world.empty()
    with _ended_at_last(), serving("kandev.asgi:application") as port, supervising():
        processes = [pid for pid in descendants(os.getpid()) if _is_control_plane(pid)]
        sessions = _started(world, count)
        tokens = tokens_of(world, -(-count // SEATS))
        paths = [(f"/ws/sessions/{session.id}/", tokens[n // SEATS]) for n, session in enumerate(sessions)]
        with closing(Screens(port, paths)) as screens:
            for session in sessions:
                intents.queue_prompt(session.id, "talk", f"work {seconds:g} at {RATE}", world.user)
            memory = screens.watch(seconds, processes)
    row = f"{count} agents, {RATE} a second each, to the socket, {{}}"
    p50, p95 = quantile(screens.waited, 0.5), quantile(screens.waited, 0.95)
    return [
        Figure(row.format("p50"), p50, "the budget of p95", BUDGET),
        Figure(row.format("p95"), p95, "the budget", BUDGET, limit=1.0 if limited else None),
        Figure(
            f"{count} agents that talk: web and supervisor at the end",
            memory[-1],
            "after a quarter of the time",
            memory[0],
            "MB",
            limit=GROWTH_LIMIT if limited else None,
        ),
    ]


def _started(world: World, count: int) -> list[TaskSession]:
    rows = [world.task(f"Talk {number}") for number in range(count)]
    Task.objects.bulk_create(rows)
    sessions = [tasks.create_session(world.user, task, world.profile, world.executor) for task in rows]
    up = TaskSession.objects.exclude(launch_id="")
    eventually(lambda: up.count() == count, timeout=TO_START, describe="all agents are up")
    return sessions


def _is_control_plane(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"daphne" in words or b"supervise" in words


@contextmanager
def _ended_at_last() -> Iterator[None]:
    """End all agents once no supervisor is there that would start them again."""
    try:
        yield
    finally:
        found = execution_processes.find_all_processes()
        ours = [found[str(key)] for key in ExecutorRunning.objects.values_list("id", flat=True) if str(key) in found]
        identity.kill_all([process for one in ours for process in (*one.agentctl, *one.others)], 30)


class Screens:
    """Clients that each follow a session: they note how old its words are when they come."""

    def __init__(self, port: int, paths: Sequence[tuple[str, str]]):
        self.waited: list[float] = []
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytearray] = {}
        self._talking: set[int] = set()
        for path, token in paths:
            one = handshake(port, path, token)
            self._sockets[one.fileno()], self._unread[one.fileno()] = one, bytearray()
            self._talking.add(one.fileno())
            self._poll.register(one, select.EPOLLIN)

    def close(self) -> None:
        """Hang up."""
        self._poll.close()
        for one in self._sockets.values():
            one.close()

    def watch(self, seconds: float, processes: Sequence[int]) -> list[float]:
        """Read until every turn has ended; return the processes' memory in MB, after a quarter of it and at the end."""
        began, memory = time.monotonic(), list[float]()
        while self._talking:
            taken = time.monotonic() - began
            assert taken < seconds + LATE, f"{len(self._talking)} turns did not end"
            if not memory and taken > seconds / 4:
                memory.append(sum(map(resident, processes)))
            for descriptor, _ in self._poll.poll(0.1):
                came = self._sockets[descriptor].recv(1 << 16)
                assert came, "a socket was closed"
                self._unread[descriptor] += came
                self._read_frames(descriptor)
        return [*memory, sum(map(resident, processes))]

    def _read_frames(self, descriptor: int) -> None:
        now = time.time()
        for code, data in _frames(self._unread[descriptor]):
            if code == 0x9:
                self._sockets[descriptor].sendall(PONG)
                continue
            frame = orjson.loads(data)
            payload = frame.get("payload") or {}
            if str(payload.get("append") or payload.get("text") or "").startswith("tick "):
                # The event has the time of the first of the pieces that were joined in it.
                self.waited.append(now - datetime.fromisoformat(frame["at"]).timestamp())
            elif frame.get("event") == "session.run.completed":
                self._talking.discard(descriptor)


def _frames(unread: bytearray) -> Iterator[tuple[int, bytes]]:
    """Take the whole frames of a server from what came: code and content of each."""
    while len(unread) >= 2:
        size, start = unread[1] & 0x7F, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(unread[2:start], "big")
        if len(unread) < start + size:
            return
        yield unread[0] & 0x0F, bytes(unread[start : start + size])
        del unread[: start + size]
