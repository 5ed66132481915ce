"""Published agents with Kandev's driver: a killed agent has its conversation again after a resume."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.drivers import Driver, StartRequest, StartResult, acp
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.real_agents.homes import RealAgent, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.waiting import eventually_async


@dataclass
class RememberingHost:
    """A fake sidecar that keeps everything in memory."""

    lines: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    token: str | None = None
    conversations: ConversationStore = field(default_factory=lambda: ConversationStore(Path("/nonexistent")))

    def record(self, kind: str, **body: Any) -> int:
        self.lines.append((kind, body))
        return len(self.lines)

    async def wait_for_room(self) -> None:
        """Return at once: there is always room."""

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        self.token = token

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        return None

    async def ask_question(self, request: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return "cancel", {}

    def complete_question(self, elicitation_id: str) -> bool:
        return False

    def agent_gone(self, exit_code: int | None) -> None:
        self.lines.append(("gone", {"exit_code": exit_code}))

    def agent_text(self) -> str:
        """Return all text of the agent."""
        return "".join(str(body["text"]) for kind, body in self.lines if kind == "message.agent")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with running_model() as server:
        yield server


@asynccontextmanager
async def started(
    agent: RealAgent, cwd: Path, token: str | None = None, host: RememberingHost | None = None
) -> AsyncIterator[tuple[Driver, RememberingHost, StartResult]]:
    """Start the agent with the conversation of ``token``, or a new one; yield driver, host and result."""
    host = host or RememberingHost()
    driver = acp.create(host, {EXECUTION_MARKER: "real-agent-test"})
    request = StartRequest(
        launch_id="launch",
        argv=agent.argv,
        env=agent.env,
        cwd=str(cwd),
        strategy="native" if token else "fresh",
        resume_token=token,
    )
    try:
        outcome = await driver.start(request)
        host.lines.clear()
        yield driver, host, outcome
    finally:
        await driver.stop(1)


async def ask(driver: Driver, text: str) -> str:
    return await driver.prompt("message", text, (), lambda: None)


@pytest.mark.real_agent
@pytest.mark.parametrize("name", ["claude-agent-acp", "codex-acp", "opencode"])
async def test_conversation_outlives_its_agent_process(name: str, model: ModelServer, tmp_path: Path) -> None:
    agent = real_agent(name, tmp_path / "home", model.url)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with started(agent, workspace) as (driver, host, first):
        assert first.outcome == "created"
        assert await ask(driver, "Please remember the word heron") == "end_turn"
        assert host.agent_text().endswith("ok")
        await eventually_async(lambda: agent.has_kept("heron"), describe="the agent has stored the word")
        await driver.stop(0)
    async with started(agent, workspace, first.resume_token) as (driver, host, second):
        assert second.outcome == "loaded"
        assert any("heron" in text for text in second.replayed_user_texts)
        assert await ask(driver, "what was the word?") == "end_turn"
        assert host.agent_text().endswith("heron")


@pytest.mark.real_agent
async def test_agent_that_saves_only_at_its_end_keeps_its_conversation_when_it_is_stopped(
    model: ModelServer, tmp_path: Path
) -> None:
    agent = real_agent("agentao", tmp_path / "home", model.url)
    async with started(agent, tmp_path) as (driver, _, first):
        await ask(driver, "Please remember the word heron")
        await driver.stop(5)
    async with started(agent, tmp_path, first.resume_token) as (driver, host, second):
        assert second.outcome == "loaded"
        await ask(driver, "what was the word?")
        assert host.agent_text().endswith("heron")
