"""A Kandev on several hosts: two webs, two supervisors and a worker on one PostgreSQL and Redis, and clients.

The second web has its own data directory, as on another machine: only PostgreSQL and Redis connect it to the others.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import aiohttp

from tests.drills import kandev_processes
from tests.drills.deployment import MANAGE, Deployment, Session
from tests.drills.fleet import SupervisorProcess
from tests.preloaded import PreloadedProcess
from tests.redis_server import RedisServer
from tests.waiting import PATIENCE, eventually

PARTS: Final = ("first web", "second web", "first supervisor", "second supervisor", "worker")


class Hosts:
    """The processes by their names in ``PARTS``; the first supervisor starts first."""

    def __init__(self, deployment: Deployment, redis: RedisServer):
        self.deployment, self.redis = deployment, redis
        deployment.env["KANDEV_REDIS_URL"] = redis.url
        self.processes: dict[str, PreloadedProcess] = {}
        self.supervisors: dict[str, SupervisorProcess] = {}

    def start(self) -> None:
        """Start all processes and wait until both webs report that they are ready."""
        made = self.deployment
        first, self.processes["first web"] = kandev_processes.web(made)
        second, self.processes["second web"] = kandev_processes.web(made, self._elsewhere())
        self.supervise("first supervisor")
        self.supervise("second supervisor")
        self.work()
        made.urls = [first, second]
        for made.url in (second, first):
            eventually(made.is_ready, timeout=60, describe=f"{made.url} is ready")

    def supervise(self, name: str) -> None:
        """Start one more supervisor."""
        self.supervisors[name] = SupervisorProcess(self.deployment, name.replace(" ", "-"))
        self.processes[name] = self.supervisors[name].process

    def work(self) -> None:
        """Start a worker."""
        self.processes["worker"] = kandev_processes.start(self.deployment, str(MANAGE), "qcluster", log="worker.log")

    def kill(self, name: str) -> None:
        """Kill a process and everything it has started, except agents."""
        process = self.processes[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def close(self) -> None:
        """Kill the processes that still run."""
        for name, process in self.processes.items():
            if process.poll() is None:
                self.kill(name)

    def _elsewhere(self) -> Mapping[str, str]:
        data = self.deployment.home / "elsewhere"
        data.mkdir(mode=0o700)
        shutil.copy2(self.deployment.data / "secret-key", data)
        return {"KANDEV_DATA_DIR": str(data)}


@contextmanager
def several_hosts(deployment: Deployment, redis: RedisServer) -> Iterator[Hosts]:
    """Yield the hosts, which end with the block."""
    made = Hosts(deployment, redis)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Follower:
    """A client that follows a session as pages do: after a broken stream it asks the next web for what it lacks."""

    def __init__(self, session: Session, urls: Sequence[str]):
        self._session, self._urls = session, list(urls)
        self.events: list[dict[str, Any]] = []
        self.openings = 0

    @property
    def names(self) -> list[str]:
        """Return the names of the events that arrived."""
        return [event["event"] for event in self.events]

    async def until(self, name: str, times: int = 1, timeout: float = 180) -> None:
        """Follow until that many events of this name have arrived."""
        try:
            async with asyncio.timeout(timeout):
                while self.names.count(name) < times:
                    with suppress(aiohttp.ClientError, OSError):
                        await self._listen(name, times)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no {name} within {timeout} s, after {self.names}") from None

    async def _listen(self, name: str, times: int) -> None:
        after = self.events[-1]["seq"] if self.events else 0
        url = f"{self._urls[self.openings % len(self._urls)]}/ws/sessions/{self._session.id}/?after={after}"
        self.openings += 1
        headers = {"Authorization": f"Token {self._session.deployment.seeded['token']}"}
        async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=headers, heartbeat=PATIENCE) as socket:
            async for message in socket:
                body = message.json()
                if body["type"] == "event":
                    self.events.append(body)
                if self.names.count(name) >= times:
                    return
