"""Fixtures for agents and drivers; everything that a test starts has ended when the test ends."""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import Driver, StartFailed, StartRequest
from executors_app.agentctl.drivers.acp import create
from executors_app.agentctl.process.guard_process import PR_SET_CHILD_SUBREAPER
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents import scripts
from tests.agents.driver_contract import AGENTS, Agent, Talk
from tests.agents.hosts import RecordingHost
from tests.waiting import PATIENCE, eventually_async, pass_time

ROOT = Path(__file__).resolve().parents[2]
MakeRequest = Callable[..., StartRequest]
ReadByAgent = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _stop_adopting_orphans() -> Iterator[None]:
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest_asyncio.fixture
async def host() -> RecordingHost:
    return RecordingHost()


@pytest_asyncio.fixture
async def driver(host: RecordingHost) -> AsyncIterator[Driver]:
    made = create(host, {EXECUTION_MARKER: "execution-of-a-test"})
    yield made
    host.has_room.set()
    await made.stop(0)


@pytest.fixture
def request_for(tmp_path: Path) -> MakeRequest:
    """Return a function that builds a start request for ``"demo"``, a behaviour, or a script."""

    def make(what: str | scripts.Script = "demo", *options: str, **changes: Any) -> StartRequest:
        argv = [sys.executable, *_command(what, tmp_path), *options]
        env = {"PYTHONPATH": str(ROOT), "KANDEV_DEMO_AGENT_HOME": str(tmp_path / "home")}
        values = {"launch_id": "launch-1", "strategy": "fresh", "timeout": PATIENCE, **changes}
        return StartRequest(argv=argv, env=env, cwd=str(tmp_path), **values)

    return make


def _command(what: str | scripts.Script, directory: Path) -> list[str]:
    if what == "demo":
        return ["-m", "executors_app.demo_agent"]
    if what == "login":
        return ["-m", "tests.support.login_agent"]
    if isinstance(what, str):
        return ["-m", "tests.support.faulty_agent", "--behaviour", what]
    script = directory / "script.json"
    script.write_text(json.dumps(what))
    return [str(Path(__file__).with_name("scripted_agent.py")), str(script)]


@pytest.fixture
def read_by_agent(tmp_path: Path) -> ReadByAgent:
    """Return a function that returns what the scripted agent has read so far."""

    def read() -> list[dict[str, Any]]:
        path = tmp_path / "script.json.read"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    return read


async def hang(driver: Driver, request: StartRequest, method: str, read_by_agent: ReadByAgent) -> StartFailed:
    """Start a scripted agent that does not answer ``method``, let its limit pass, and return the failure."""
    starting = asyncio.create_task(driver.start(request))
    await eventually_async(lambda: method in [line.get("method") for line in read_by_agent()])
    pass_time(request.timeout + request.load_timeout)
    with pytest.raises(StartFailed) as failed:
        await starting
    return failed.value


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request: pytest.FixtureRequest) -> Agent:
    return request.param  # type: ignore[no-any-return]


@pytest_asyncio.fixture
async def talk(agent: Agent, tmp_path: Path) -> AsyncIterator[Talk]:
    """Yield a conversation with each agent of the contract; check that none of its processes is left."""
    talk = Talk(agent, tmp_path)
    yield talk
    talk.host.has_room.set()
    await talk.driver.stop(0)
    assert talk.processes_left() == []
