"""One sprite of the fake API: a directory and real processes, which are running, frozen or gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executors_app.machine.process import execution_processes, identity

RESTART_AFTER = 0.2


@dataclass
class Service:
    """The definition of a service, and its process while it runs."""

    name: str
    cmd: str
    args: Sequence[str]
    env: Mapping[str, str]
    dir: str | None
    status: str = "stopped"
    process: asyncio.subprocess.Process | None = None
    keeper: asyncio.Task[None] | None = None

    def json(self) -> dict[str, Any]:
        """Return the service as the API documents it."""
        state = {"name": self.name, "status": self.status}
        if self.process is not None and self.status == "running":
            state["pid"] = self.process.pid  # type: ignore[assignment]
        return {"name": self.name, "cmd": self.cmd, "args": list(self.args), "needs": [], "state": state}


@dataclass
class Machine:
    """A fake sprite."""

    name: str
    labels: Sequence[str]
    status: str = "cold"
    services: dict[str, Service] = field(default_factory=dict)
    tasks: set[str] = field(default_factory=set)
    tunnels: set[Any] = field(default_factory=set)
    wakes: int = 0

    @property
    def execution_id(self) -> str:
        """Return the execution id that marks its processes."""
        return self.name.removeprefix("kandev-")

    def json(self) -> dict[str, Any]:
        """Return the sprite as the API documents it."""
        return {
            "id": self.name,
            "name": self.name,
            "organization": "tests",
            "url": f"https://{self.name}-tests.sprites.app",
            "url_settings": {"auth": "sprite"},
            "status": self.status,
            "labels": list(self.labels),
        }

    async def wake(self) -> None:
        """Wake the sprite: a warm one continues, a cold one boots and starts its services."""
        before, self.status = self.status, "running"
        if before == "running":
            return
        self.wakes += 1
        if before == "warm":
            self._signal(signal.SIGCONT)
            return
        for service in self.services.values():
            if service.status != "stopped":
                await self.start(service)

    async def make_warm(self) -> bool:
        """Freeze processes and drop connections unless a task holds the sprite; return whether it is warm."""
        if self.tasks:
            return False
        await self._drop_tunnels()
        self._signal(signal.SIGSTOP)
        self.status = "warm"
        return True

    async def make_cold(self) -> None:
        """Make the sprite cold: end all processes and connections."""
        await self._drop_tunnels()
        self.tasks.clear()
        for service in self.services.values():
            await self._end(service)
            service.status = "starting" if service.status != "stopped" else "stopped"
        await asyncio.to_thread(self._kill)
        self.status = "cold"

    async def break_service(self) -> None:
        """Let all services fail: their processes end, and the sprite stays awake."""
        for service in self.services.values():
            await self._end(service)
            service.status = "failed"
        await asyncio.to_thread(self._kill)

    async def start(self, service: Service) -> None:
        """Start a service and restart it whenever it exits."""
        if service.status == "running":
            return
        await self._end(service)
        await self._spawn(service)
        service.keeper = asyncio.create_task(self._keep(service))

    async def stop(self, service: Service, grace: float) -> None:
        """Stop a service with SIGTERM, then SIGKILL; it is not restarted."""
        service.status = "stopped"
        process = service.process
        if process is not None and process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace)
        await self._end(service)

    async def _spawn(self, service: Service) -> None:
        """Start the process of a service; one that cannot be started is retried like one that exits."""
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **service.env}
        argv, nothing = (service.cmd, *service.args), asyncio.subprocess.DEVNULL
        service.process, service.status = None, "starting"
        with contextlib.suppress(OSError):
            service.process = await asyncio.create_subprocess_exec(
                *argv,
                env=env,
                cwd=service.dir,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
            service.status = "running"

    async def _keep(self, service: Service) -> None:
        while True:
            if service.process is not None:
                await service.process.wait()
            await asyncio.sleep(RESTART_AFTER)
            await self._spawn(service)

    async def _end(self, service: Service) -> None:
        if service.keeper is not None:
            service.keeper.cancel()
            await asyncio.gather(service.keeper, return_exceptions=True)
        if service.process is not None and service.process.returncode is None:
            service.process.kill()
            await service.process.wait()
        service.keeper = service.process = None

    async def _drop_tunnels(self) -> None:
        for tunnel in list(self.tunnels):
            await tunnel.close()

    def _processes(self) -> list[identity.ProcessIdentity]:
        found = execution_processes.find_processes(self.execution_id)
        return [*found.agentctl, *found.others]

    def _signal(self, number: int) -> None:
        for who in self._processes():
            identity.send_signal(who, number)

    def _kill(self) -> None:
        identity.kill_all(self._processes(), 10)
