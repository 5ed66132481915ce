"""There are never two agents in one conversation, however many starts are requested or hang."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import Host, acp
from executors_app.agentctl.drivers.acp import AcpDriver
from tests.agentctl.running import Running, agentctl
from tests.agents.conftest import ROOT
from tests.waiting import PATIENCE, eventually_async

BORN = """
for earlier in $(cat born 2>/dev/null); do kill -0 "$earlier" 2>/dev/null && echo "$earlier" >> beside; done
echo $$ >> born
"""
"""Shell code with which each agent records its pid, and that of every earlier agent still alive."""
IGNORES_TERM = """
trap '' TERM HUP INT
setsid sleep 1000 >/dev/null 2>&1 </dev/null &
echo $! >> born
"""
"""Shell code that ignores SIGTERM, also in a child in another process session."""


class Unending(AcpDriver):
    """A driver that fails to end its process, so that an agent outlives its failed start."""

    ends = False

    async def stop(self, grace: float) -> int | None:
        if not self.ends:
            raise RuntimeError("the process could not be ended")
        return await super().stop(grace)


@pytest_asyncio.fixture
async def unending() -> AsyncIterator[list[Unending]]:
    made: list[Unending] = []
    yield made
    for driver in made:
        driver.ends = True
        await driver.stop(0)


@pytest_asyncio.fixture
async def running(tmp_path: Path, unending: list[Unending]) -> AsyncIterator[Running]:
    def create(host: Host, marker: Mapping[str, str]) -> Unending:
        unending.append(Unending(host, marker))
        return unending[-1]

    async with agentctl(tmp_path, drivers={"acp": acp.create, "unending": create}) as started:
        yield started


async def start(running: Running, launch_id: str, behaviour: str = "honest", *, deaf: bool = False, **more: Any) -> Any:
    agent = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", behaviour, "--home", "home"]
    argv = ["/bin/sh", "-c", f'{BORN}{IGNORES_TERM if deaf else ""}exec "$@"', "sh", *agent]
    values = {"argv": argv, "env": {"PYTHONPATH": str(ROOT)}, "driver": "acp", "timeout": PATIENCE, **more}
    status, body = await running.start(launch_id, **values)
    return status, body.get("code", "")


def born(running: Running) -> list[int]:
    path = running.workspace / "born"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def had_one_process(running: Running) -> bool:
    return not (running.workspace / "beside").exists()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_concurrent_starts_create_one_agent(running: Running) -> None:
    launches = ["launch-1", "launch-2", "launch-1", "launch-3", "launch-1"]

    answers = await asyncio.gather(*(start(running, launch_id) for launch_id in launches))

    assert sorted(answers) == [(200, "")] * 3 + [(409, "already_running")] * 2
    assert len(born(running)) == 1


@pytest.mark.parametrize("behaviour", ["hangs_at_initialize", "hangs_at_load"])
@pytest.mark.parametrize("deaf", [False, True], ids=["obeys TERM", "ignores TERM"])
async def test_no_agent_starts_during_a_hanging_start_and_none_remains(
    behaviour: str, deaf: bool, running: Running
) -> None:
    native = {"strategy": "native", "resume_token": "conversation-1"} if behaviour == "hangs_at_load" else {}
    hanging = asyncio.create_task(start(running, "launch-1", behaviour, deaf=deaf, timeout=10, **native))
    await eventually_async(lambda: len(born(running)) == 1 + deaf)
    answers: list[tuple[int, str]] = []

    async def another_start() -> bool:
        answers.append(await start(running, f"launch-{len(answers) + 2}"))
        return answers[-1][0] == 200

    await eventually_async(another_start)

    assert set(answers[:-1]) == {(409, "already_running")}
    assert await hanging == (502, "start_timeout")
    *old, new = born(running)
    assert len(old) == 1 + deaf
    assert not any(map(is_alive, old))
    assert is_alive(new)
    assert had_one_process(running)


async def test_stopping_a_hanging_start_leaves_no_process_behind(running: Running) -> None:
    hanging = asyncio.create_task(start(running, "launch-1", "hangs_at_initialize", deaf=True))
    await eventually_async(lambda: len(born(running)) == 2)

    stop, after = await asyncio.gather(running.post("/agent/stop", grace=0), start(running, "launch-2"))

    assert stop[0] == 200
    assert await hanging == (502, "agent_exited")
    assert after == (409, "already_running")
    assert (await start(running, "launch-3"))[0] == 200
    assert had_one_process(running)


async def test_agent_that_could_not_be_ended_blocks_every_start(running: Running, unending: list[Unending]) -> None:
    status, _ = await start(running, "launch-1", "hangs_at_initialize", driver="unending", timeout=10)
    assert status == 502

    assert await start(running, "launch-2") == (409, "already_running")

    assert len(born(running)) == 1
    os.kill(born(running)[0], 9)
    await eventually_async(lambda: unending[0].pid is None)
    assert (await start(running, "launch-3"))[0] == 200
    assert had_one_process(running)
