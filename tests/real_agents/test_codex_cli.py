"""The published command line of Codex through its driver, and the fake agent compared with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from executors_app.agentctl.drivers import Driver, StartRequest, TurnFailed, codex_cli
from executors_app.plugins import agent_types
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents.driver_contract import UNKNOWN, ContractHost
from tests.real_agents.homes import OTHERS, RealAgent
from tests.real_agents.model_server import ModelServer, running_model
from tests.services import ROOT, require
from tests.waiting import eventually_async

pytestmark = pytest.mark.real_agent
NewDriver = Callable[[], Driver]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
REMEMBER = "please remember the word PELICAN"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server
        server.release()


@pytest.fixture
def codex(tmp_path: Path, model: ModelServer) -> RealAgent:
    require("codex")
    return OTHERS["codex"](tmp_path / "home", model.url)


@pytest.fixture
def host(tmp_path: Path) -> ContractHost:
    return ContractHost(tmp_path)


@pytest_asyncio.fixture
async def new_driver(host: ContractHost) -> AsyncIterator[Callable[[], Driver]]:
    """Yield a function that makes drivers, one after the other as agentctl does over restarts; all are stopped."""
    made: list[Driver] = []

    def make() -> Driver:
        made.append(codex_cli.create(host, {EXECUTION_MARKER: "real-codex"}))
        return made[-1]

    yield make
    for driver in made:
        await driver.stop(1)


def request_for(codex: RealAgent, cwd: Path, token: str | None = None) -> StartRequest:
    return StartRequest(
        launch_id="launch",
        argv=codex.argv,
        env=codex.env,
        cwd=str(cwd),
        strategy="native" if token else "fresh",
        resume_token=token,
        gone_patterns=agent_types()["codex_cli"].gone_patterns,
    )


def pid_of(driver: Driver) -> int:
    assert driver.pid is not None
    return driver.pid


async def ask(driver: Driver, text: str) -> str:
    return await driver.prompt("message", text, (), lambda: None)


async def test_killed_turn_keeps_the_conversation(
    codex: RealAgent, model: ModelServer, host: ContractHost, new_driver: NewDriver, tmp_path: Path
) -> None:
    driver = new_driver()
    started = await driver.start(request_for(codex, tmp_path))
    assert started.agent["version"].startswith("0.")
    assert await ask(driver, REMEMBER) == "end_turn"
    assert driver.pid is None
    turn = asyncio.create_task(ask(driver, "HOLD"))
    await eventually_async(lambda: model.holding)
    os.kill(pid_of(driver), signal.SIGKILL)
    with pytest.raises(TurnFailed) as failed:
        await turn
    assert (failed.value.code, host.exits) == ("agent_exited", [-signal.SIGKILL])

    (token,) = set(host.tokens)
    driver = new_driver()
    resumed = await driver.start(request_for(codex, tmp_path, token))
    assert (resumed.outcome, resumed.resume_token) == ("resumed", token)
    assert await ask(driver, "what was the word?") == "end_turn"

    assert host.agent_text().endswith("PELICAN")
    assert set(host.tokens) == {token}


async def test_image_of_a_prompt_reaches_the_model_also_after_a_resume(
    codex: RealAgent, model: ModelServer, host: ContractHost, new_driver: NewDriver, tmp_path: Path
) -> None:
    image = {"type": "image", "mimeType": "image/png", "data": PNG}
    driver = new_driver()
    started = await driver.start(request_for(codex, tmp_path))
    assert started.capabilities["prompt"] == ["image"]
    for number in (1, 2):
        model.images.clear()
        assert await driver.prompt(f"message-{number}", "what is this?", [image], lambda: None) == "end_turn"
        assert model.images.count(PNG) == number, "the conversation has each image once"


async def test_cancelled_turn_leaves_a_usable_conversation(
    codex: RealAgent, model: ModelServer, host: ContractHost, new_driver: NewDriver, tmp_path: Path
) -> None:
    driver = new_driver()
    await driver.start(request_for(codex, tmp_path))
    await ask(driver, REMEMBER)
    turn = asyncio.create_task(ask(driver, "HOLD"))
    await eventually_async(lambda: model.holding)

    await driver.cancel()

    assert await turn == "cancelled"
    assert driver.pid is None
    await ask(driver, "what was the word?")
    assert host.agent_text().endswith("PELICAN")


async def test_unknown_thread_is_reported_by_its_patterns(
    codex: RealAgent, new_driver: NewDriver, tmp_path: Path
) -> None:
    driver = new_driver()
    await driver.start(request_for(codex, tmp_path, UNKNOWN))

    with pytest.raises(TurnFailed) as failed:
        await ask(driver, "what was the word?")

    assert failed.value.code == "token_rejected"


def shapes(argv: list[str], env: Mapping[str, str], cwd: Path, prompt: str) -> dict[str, Any]:
    """Return the field names of each kind of line, which a reader may rely on."""
    completed = subprocess.run(
        argv, env=env, cwd=cwd, input=prompt, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = {}
    for line in map(json.loads, completed.stdout.splitlines()):
        item = line.get("item", {})
        if item.get("type") != "error":  # it does not know the loopback model
            kind = f"{line['type']} {item.get('type', '')}".strip()
            found[kind] = {name: sorted(value) if isinstance(value, dict) else "" for name, value in line.items()}
    return found


def test_fake_agent_writes_the_lines_of_codex(codex: RealAgent, tmp_path: Path) -> None:
    command = ["exec", "--skip-git-repo-check", "--json", "--", "-"]
    real = shapes([*codex.argv, *command], codex.env, tmp_path, REMEMBER)
    stand_in = [sys.executable, "-m", "tests.agents.standins.codex", *command]
    env = {"PYTHONPATH": str(ROOT), "STANDIN_HOME": str(tmp_path / "stand-in")}

    assert shapes(stand_in, env, tmp_path, "remember the word PELICAN") == real
    assert set(real) == {"thread.started", "turn.started", "item.completed agent_message", "turn.completed"}
