"""The contract of every driver: its agents, and how a test talks to them.

``AGENTS`` are fake agents: real processes that speak the real wire format (``standins``). For a new driver, add a line
to it; ``test_driver_contract`` runs the same tests for all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from executors_app.agentctl.drivers import (
    Driver,
    StartRequest,
    StartResult,
    acp,
    amp_cli,
    claude_cli,
    codex_cli,
    gemini_cli,
)
from executors_app.machine.process import identity
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.agents.hosts import RecordingHost

ROOT = Path(__file__).resolve().parents[2]
EXECUTION: Final = "execution-of-a-contract"
UNKNOWN: Final = "019a0000-0000-7000-8000-000000000000"


@dataclass(frozen=True)
class Agent:
    """One fake agent and what it supports beyond the contract."""

    name: str
    driver: ModuleType
    gone: str
    """Its agent type's pattern for a lost conversation."""
    process_per_turn: bool = False
    resumed: str = "resumed"
    """The outcome of a start that continues a conversation."""
    names_lost_conversation: bool = False
    """Whether an error that names its conversation reports it as gone, without a pattern."""
    names_itself: bool = True
    """Whether it reports the id of its conversation, so that a different one is noticed."""
    asks: Mapping[str, str] | None = None
    """If it asks for permission: its text for each chosen option."""


AGENTS: Final = (
    Agent(
        "acp",
        acp,
        gone="no conversation",
        resumed="loaded",
        names_lost_conversation=True,
        names_itself=False,
        asks={"allow": "The answer was allow.", "reject": "The answer was reject."},
    ),
    Agent(
        "claude",
        claude_cli,
        gone="No conversation found with session ID",
        asks={
            "allow": "The answer was allow.",
            "always": "The answer was allow for ever.",
            "reject": "The answer was deny.",
        },
    ),
    Agent("codex", codex_cli, gone="no rollout found", process_per_turn=True),
    Agent("gemini", gemini_cli, gone="Invalid session identifier", process_per_turn=True),
    Agent("amp", amp_cli, gone=r"Thread \S+ not found", process_per_turn=True),
)


class ContractHost(RecordingHost):
    """Host that also remembers the ids of last messages."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.last_message_uuid: str | None = None

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        await super().keep_token(token, last_message_uuid)
        self.last_message_uuid = last_message_uuid


class Talk:
    """A test's conversation with one agent through its driver."""

    def __init__(self, agent: Agent, directory: Path):
        self.agent, self.home = agent, directory / "home"
        self._directory = directory
        self.host = ContractHost(directory)
        self.driver: Driver = agent.driver.create(self.host, {EXECUTION_MARKER: EXECUTION})
        self._messages = 0

    def request(self, **changes: Any) -> StartRequest:
        """Build a start request for the fake agent; ``lies=True`` makes it report another conversation on a resume."""
        env = {"PYTHONPATH": str(ROOT), "STANDIN_HOME": str(self.home)}
        if changes.pop("lies", False):
            env["STANDIN_LIES"] = "1"
        values = {"launch_id": "launch-1", "strategy": "fresh", "timeout": 15.0, "gone_patterns": [self.agent.gone]}
        argv = [sys.executable, "-S", "-m", f"tests.agents.standins.{self.agent.name}"]
        return StartRequest(argv=argv, env=env, cwd=str(self._directory), **{**values, **changes})

    async def start(self, **changes: Any) -> StartResult:
        return await self.driver.start(self.request(**changes))

    async def resume(self, token: str | None = None, **changes: Any) -> StartResult:
        return await self.start(strategy="native", resume_token=token or self.host.tokens[-1], **changes)

    async def say(self, text: str) -> str:
        """Run one turn and return its stop reason."""
        self._messages += 1
        return await self.driver.prompt(f"message-{self._messages}", text, (), self._delivered)

    def _delivered(self) -> None:
        self.host.record("prompt.delivered")

    async def begin_again(self) -> None:
        """Stop the agent, forget its output and create a new driver, as after a restart of agentctl."""
        await self.driver.stop(0)
        self.host.lines.clear()
        self.host.exits.clear()
        self.driver = self.agent.driver.create(self.host, {EXECUTION_MARKER: EXECUTION})

    def processes_left(self) -> list[int]:
        """Return the pids of processes with this test's home directory in their environment."""
        mark = f"STANDIN_HOME={self.home}".encode()
        ours = identity.find_marked(EXECUTION, EXECUTION_MARKER)
        return [each.pid for each in ours if mark in identity.read_environment(each.pid)]

    def has_process(self) -> bool:
        return self.driver.pid is not None

    def commands(self) -> list[list[str]]:
        """Return the arguments of every process that took a turn, oldest first."""
        path = self.home / "commands"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
