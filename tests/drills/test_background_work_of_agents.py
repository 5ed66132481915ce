"""Published agents leave a command running: Kandev says what became of it, whichever process is killed.

All agents share one deployment, whose control plane is killed once for all of them. An agent that fails a step leaves
out the following ones, and only its own test fails.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.machine.process import identity
from tests.agent_matrix.drilled_agents import AGENTS
from tests.drills.deployment import ApiError, Deployment, Session
from tests.real_agents.background_commands import LEAVING, command_for
from tests.real_agents.homes import AGENT_TYPES, real_agent
from tests.real_agents.model_server import ModelServer, running_model
from tests.services import missing, require
from tests.waiting import eventually

LIMIT: Final = 180
"""Seconds for what an agent does: several start at the same time."""
ENDED: Final = "session.outside_work.interrupted"
"""The event that names processes that have ended."""


@dataclass
class LeavingAgent:
    """An agent with a session in which its first turn leaves a command running."""

    name: str
    command: str
    """The command line that is left running; no other agent has it."""
    session: Session
    model: ModelServer
    left: identity.ProcessIdentity | None = None
    since: str = ""

    @property
    def note(self) -> Path:
        """The file to which each run of the command adds its pid."""
        return Path(self.session.row["worktree_path"]) / "left"

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return what the status lists of the command, by command line: some agents keep its shell, too."""
        listed = self.session.status()["background_processes"]
        return {each["command"]: each for each in listed if self.command in each["command"]}

    def wait_for_listed(self) -> dict[str, Any]:
        """Wait until the status lists the command; return what it lists of it."""
        found = eventually(lambda: self.listed().get(self.command), describe=f"the command of {self.name} is listed")
        assert found is not None
        return found

    def ask(self, text: str) -> None:
        """Send a prompt, and wait until its turn has completed."""
        before = len(self.session.turn_ends())
        self.session.prompt(text)
        end = self.session.wait_for_turn(before, LIMIT)
        if end is None:
            self.session.deployment.api("POST", f"{self.session.path}/resume/", {"mode": "auto"})
            end = self.session.wait_for_turn(before, LIMIT)
        assert end == "session.run.completed"

    def check_ran_once(self) -> None:
        """Check that the model has called the command once, and that it has run once."""
        calls = [call for call in self.model.calls if self.command in json.dumps(call.arguments)]
        assert (len(calls), len(self.note.read_text().split())) == (1, 1)


@dataclass
class Drill:
    """The agents that run here, and what went wrong with each."""

    deployment: Deployment
    agents: dict[str, LeavingAgent] = field(default_factory=dict)
    failures: dict[str, BaseException] = field(default_factory=dict)

    def for_each(self, step: Callable[[LeavingAgent], None]) -> None:
        """Do a step with each agent that has not failed yet."""
        for name, agent in self.agents.items():
            if name in self.failures:
                continue
            try:
                step(agent)
            except (AssertionError, ApiError, OSError, LookupError, ValueError, pytest.fail.Exception) as error:
                self.failures[name] = error


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    """Drill all agents that are installed here."""
    deployment = Deployment(tmp_path_factory.mktemp("kandev"))
    deployment.env |= {"KANDEV_CONTINUE": "off", "KANDEV_START_CONCURRENCY": "3"}
    deployment.prepare()
    deployment.change("UPDATE executors SET max_live = 20")
    with running_model() as model:
        try:
            deployment.serve()
            drill = Drill(deployment)
            for number, name in enumerate(name for name in LEAVING if not missing(name)):
                home = tmp_path_factory.mktemp(name) / "home"
                drill.agents[name] = _started(deployment, model, name, home, f"sleep {3900 + number}")
            drill.for_each(_is_listed)
            deployment.kill_server()
            deployment.serve()
            drill.for_each(_is_still_listed)
            drill.for_each(_kill_agentctl)
            drill.for_each(_is_named_to_the_log)
            drill.for_each(_is_named_to_the_agent)
            yield drill
        finally:
            deployment.close()


def _started(deployment: Deployment, model: ModelServer, name: str, home: Path, command: str) -> LeavingAgent:
    agent = real_agent(name, home, model.url)
    profile = {
        "agent_type": AGENT_TYPES[name],
        "command": list(agent.argv),
        "env": {**agent.env, **LEAVING[name].env},
        "permission_mode": "auto_approve",
    }
    session = deployment.start_session(f"RUN {command_for(name, command)}", profile)
    return LeavingAgent(name, command, session, model)


def _is_listed(agent: LeavingAgent) -> None:
    """After the end of its turn, the command is listed with its start and its CPU time."""
    assert agent.session.wait_for_turn(0, LIMIT) == "session.run.completed"
    left = agent.left = identity.identify(int(agent.note.read_text()))
    assert left is not None, "the command has outlived the turn"
    # The shell that notes its pid becomes the command after that.
    eventually(lambda: command_line_of(left.pid) == agent.command, describe=f"the command of {agent.name} runs")

    process = agent.wait_for_listed()
    age = datetime.now(UTC) - datetime.fromisoformat(process["since"])
    assert timedelta(seconds=-2) < age < timedelta(hours=1)
    assert process["cpu_seconds"] is not None
    agent.since = process["since"]


def _is_still_listed(agent: LeavingAgent) -> None:
    """After a restart of the control plane and a further turn, the same process is listed as before."""
    agent.ask(f"say ok, {agent.name}")

    assert agent.left is not None
    assert identity.is_alive(agent.left)
    assert agent.wait_for_listed()["since"] == agent.since
    eventually(lambda: agent.session.status()["background"]["is_current"], describe="the list is as of now")
    assert ENDED not in agent.session.names()
    assert agent.session.journal().count('"kind":"agent.started"') == 1
    agent.check_ran_once()


def _kill_agentctl(agent: LeavingAgent) -> None:
    os.kill(agent.session.execution["pid"], signal.SIGKILL)


def _is_named_to_the_log(agent: LeavingAgent) -> None:
    """The command ends with agentctl: the log names it, and it is not listed any more."""
    eventually(lambda: ENDED in agent.session.names(), timeout=LIMIT, describe="the log names what has ended")
    [told] = [event["payload"] for event in agent.session.events() if event["name"] == ENDED]
    assert agent.command in told["processes"]
    assert agent.left is not None
    left = agent.left
    eventually(lambda: not identity.is_alive(left), describe="the command has ended")
    assert agent.listed() == {}


def _is_named_to_the_agent(agent: LeavingAgent) -> None:
    """The next prompt names the command, unless the agent cannot resume and Kandev refuses further prompts."""
    # The model answers this question even where the prompt has the history, and with it the request for the command.
    question = f"what was the word, {agent.name}?"
    eventually(lambda: not agent.session.status()["starting"], timeout=LIMIT, describe="the agent is started again")
    if AGENTS[agent.name].expected("resume").startswith("refused"):
        with pytest.raises(ApiError, match="409"):
            agent.session.prompt(question)
        return
    agent.ask(question)
    requests = [request for request in agent.model.requests if question in request]
    assert any(f"- {agent.command}" in request.splitlines() for request in requests)
    agent.check_ran_once()


@pytest.mark.real_agent
@pytest.mark.parametrize("name", LEAVING)
def test_what_became_of_a_command_is_told_whichever_process_is_killed(name: str, drill: Drill) -> None:
    require(name)
    if failure := drill.failures.get(name):
        raise AssertionError(f"{failure}\n{drill.agents[name].session.log()[-3000:]}") from failure
