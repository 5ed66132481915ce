"""What the figures count that published agents report, as their agent types declare it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from executors_app.agentctl.drivers import StartRequest, acp, claude_cli, codex_cli
from executors_app.plugins import agent_types
from executors_app.wire.protocol import EXECUTION_MARKER
from sessions_app.stream.rules.usage import parse_usage
from sessions_app.usage.rules.figures import FIRST_TURN, Earlier, TurnFigures, last_figures, turn_figures
from tests.agents.driver_contract import ContractHost
from tests.real_agents.homes import RealAgent, claude_agent_acp, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.services import CLAUDE, require

TURNS: Final = ("Please say one", "RUN echo hi", "Please say three")
"""The second one takes two requests to the model, the others take one."""
AFTER_RESUME: Final = ("Please say four",)
REQUEST_TOKENS: Final = 12
"""What the model reports for each request."""
DRIVERS: Final[Mapping[str, ModuleType]] = {"claude_cli": claude_cli, "codex_cli": codex_cli}
COMMANDS: Final = {
    "claude_code": "claude-agent-acp",
    "codex": "codex-acp",
    "codex_cli": "codex",
    "opencode": "opencode",
}


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server


def agent_of_type(name: str, home: Path, model: ModelServer) -> RealAgent:
    if name != "claude_cli":
        return real_agent(COMMANDS[name], home, model.url)
    require("claude-agent-acp")
    return RealAgent((str(CLAUDE),), claude_agent_acp(home, model.url).env)


async def reports(
    agent: RealAgent, driver_module: ModuleType, host: ContractHost, turns: tuple[str, ...], *, patience: float
) -> list[dict[str, Any]]:
    """Return the figures of each turn between a start of the agent and its stop, which waits for so many seconds."""
    token = host.tokens[-1] if host.tokens else None
    driver = driver_module.create(host, {EXECUTION_MARKER: "usage"})
    request = StartRequest(
        launch_id="launch",
        argv=agent.argv,
        env=agent.env,
        cwd=agent.env["HOME"],
        strategy="native" if token else "fresh",
        resume_token=token,
        permission_mode="auto_approve",
    )
    found = []
    try:
        await driver.start(request)
        for number, text in enumerate(turns):
            seen = len(host.of("usage"))
            await driver.prompt(f"m{number}", text, (), lambda: None)
            figures: dict[str, Any] = {}
            for line in host.of("usage")[seen:]:
                figures |= parse_usage(line["usage"])
            found.append(figures)
    finally:
        await driver.stop(patience)
    return found


@pytest.mark.real_agent
@pytest.mark.parametrize(
    ("name", "patience", "tokens", "has_cost"),
    [
        # What Claude Code counts after a resume depends on how its process before that ended.
        ("claude_code", 0, [12, 24, 12, 12], True),
        ("claude_code", 5, [12, 24, 12, 12], True),
        ("claude_cli", 0, [12, 24, 12, 12], True),
        ("claude_cli", 5, [12, 24, 12, 12], True),
        ("codex", 0, [12, 24, 12, 12], False),
        ("codex_cli", 0, [12, 24, 12, 12], False),
        # It reports the last request of a turn alone.
        ("opencode", 0, [None, None, None, None], True),
    ],
)
async def test_turns_of_an_agent_are_told_apart_as_declared(
    name: str, patience: float, tokens: list[int | None], has_cost: bool, model: ModelServer, tmp_path: Path
) -> None:
    declared = agent_types()[name].usage
    agent = agent_of_type(name, tmp_path / "home", model)
    host = ContractHost(tmp_path)
    driver = DRIVERS.get(name, acp)
    first = await reports(agent, driver, host, TURNS, patience=patience)
    then = await reports(agent, driver, host, AFTER_RESUME, patience=patience)

    turns: list[TurnFigures] = []
    last: dict[str, Any] = {}
    for number, figures in enumerate([*first, *then]):
        earlier = Earlier(last, same_process=number != len(first)) if turns else FIRST_TURN
        turns.append(turn_figures(figures, declared, earlier))
        last = last_figures(figures, last)

    assert [turn.tokens for turn in turns] == tokens
    if name == "opencode":
        assert [figures["total_tokens"] for figures in first] == [REQUEST_TOKENS] * 3
    costs = [turn.cost for turn in turns]
    if not has_cost:
        assert costs == [None] * 4
        return
    assert None not in costs[:3]
    last_reported = [figures["cost"] for figures in (*first, *then)]
    if costs[3] is not None:
        assert costs[3] <= last_reported[3], "a turn costs no more than the agent has ever reported"
    assert first == sorted(first, key=lambda figures: figures["cost"]), "each report has the cost of all turns so far"
