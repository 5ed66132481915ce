"""Published agents: what a turn leaves running is told from the agent's own processes, and ends with the agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.agentctl.process.background import BackgroundProcesses
from executors_app.machine.process import identity
from tests.real_agents.homes import real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.real_agents.test_real_agents import RememberingHost, ask, started
from tests.waiting import eventually_async


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server


WITHOUT_SANDBOX: Final = {"INITIAL_AGENT_MODE": "agent-full-access"}
"""Codex's sandbox puts a ``.git`` into ``/tmp``, which stays there when Codex is killed."""
LEFT: Final = "sleep 3987"
LEAVES: Final = "sh -c 'echo $$ >left; exec sleep 3987'"
COMMANDS: Final = {
    "claude-agent-acp": f"{LEAVES} >/dev/null 2>&1 &",
    "codex-acp": LEAVES,  # it ends what its shell leaves, but a command that takes long outlives the turn
    "opencode": f"{LEAVES} >/dev/null 2>&1 &",
}


class AllowingHost(RememberingHost):
    """Allows everything, once."""

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        return next(str(option["option_id"]) for option in request["options"] if option["kind"] == "allow_once")


@pytest.mark.real_agent
@pytest.mark.parametrize("name", COMMANDS)
async def test_command_that_outlives_its_turn_is_the_only_background_work(
    name: str, model: ModelServer, tmp_path: Path
) -> None:
    agent = real_agent(name, tmp_path / "home", model.url)
    agent = replace(agent, env={**agent.env, **WITHOUT_SANDBOX})
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with started(agent, workspace, host=AllowingHost()) as (driver, host, _):
        background = BackgroundProcesses()
        background.note_started()

        def left_running() -> dict[str, int]:
            """Return the listed processes by command line."""
            return {each.command: each.pid for each in background.running(driver.pid).processes}

        background.note_work_began(driver.pid)
        await ask(driver, f"RUN {COMMANDS[name]}")
        await eventually_async((workspace / "left").is_file, describe=f"the command runs: {host.lines}")
        await eventually_async(lambda: set(left_running()) == {LEFT}, describe=f"only it is listed: {left_running()}")
        left = identity.identify(left_running()[LEFT])
        assert left is not None

        background.note_work_began(driver.pid)
        await ask(driver, "Please remember the word heron")
        # The agent may run a helper for a moment.
        await eventually_async(lambda: set(left_running()) == {LEFT}, describe=f"only it is listed: {left_running()}")

        assert driver.pid is not None
        os.kill(driver.pid, signal.SIGKILL)
        await eventually_async(lambda: not identity.is_alive(left), describe="it has ended with its agent")
