"""Published agents: which of them take a prompt into a running turn, and that they take it once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from executors_app.agentctl.drivers import SteeringRefused, SupportsSteering
from executors_app.agents import AgentType
from executors_app.plugins import agent_types
from tests.real_agents.homes import AGENT_TYPES, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.real_agents.test_real_agents import ask, started
from tests.waiting import eventually_async

WITH_ACP: Final = sorted(name for name, kind in AGENT_TYPES.items() if agent_types()[kind].driver == "acp")
THAT_STEER: Final = ("claude-agent-acp", "codex-acp")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server


def type_of(name: str) -> AgentType:
    return agent_types()[AGENT_TYPES[name]]


def test_every_agent_that_runs_here_is_known_to_steer_or_not() -> None:
    known = {name: offers.steers for name in WITH_ACP if (offers := type_of(name).offers) is not None}
    assert known == {name: name in THAT_STEER for name in WITH_ACP}


@pytest.mark.real_agent
@pytest.mark.parametrize("name", WITH_ACP)
async def test_agent_announces_what_its_type_says(name: str, model: ModelServer, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with started(real_agent(name, tmp_path / "home", model.url), workspace) as (driver, _, first):
        assert isinstance(driver, SupportsSteering)
        assert driver.steers is (name in THAT_STEER)
        assert first.capabilities.get("steering", False) is (name in THAT_STEER)


@pytest.mark.real_agent
@pytest.mark.parametrize("name", THAT_STEER)
async def test_prompt_for_now_is_taken_into_the_running_turn_once(
    name: str, model: ModelServer, tmp_path: Path
) -> None:
    workspace, given, word = tmp_path / "workspace", list[None](), f"pelican-of-{name}"
    workspace.mkdir()
    model.hold()
    async with started(real_agent(name, tmp_path / "home", model.url), workspace) as (driver, _, _first):
        assert isinstance(driver, SupportsSteering)
        turn = asyncio.create_task(ask(driver, f"HOLD the turn of {name}"))
        await eventually_async(lambda: model.holds(f"turn of {name}"), describe="the model works on the turn")
        await driver.steer(f"Please remember the word {word}", (), lambda: given.append(None))
        assert not turn.done()
        assert len(given) == 1
        model.release()
        assert await turn == "end_turn"
        assert model.heard_about(word), "before the turn ended"
        assert await ask(driver, "what was the word?") == "end_turn"
        asked = [request for request in model.heard_about(word) if "what was the word" in request]
        assert {request.count(f"remember the word {word}") for request in asked} == {1}
        with pytest.raises(SteeringRefused):
            await driver.steer(f"Please remember the word heron-of-{name}", (), lambda: None)
        assert model.heard_about(f"heron-of-{name}") == []
