"""Which agent profile a node means by ``runner``, and which model its session is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from executors_app.models import AgentProfile
from executors_app.plugins import agent_types
from sessions_app.services.workflow_rows import all_nodes
from sessions_app.workflows.graph import Workflow as Graph
from sessions_app.workflows.nodes.agent import AgentSettings

RUNNERS: Final[dict[str, tuple[str, ...]]] = {
    "claude-code": ("claude_code", "claude_cli"),
    "codex": ("codex", "codex_cli"),
    "openai": ("openai_chat",),
    "gemini-cli": ("gemini", "gemini_cli"),
}
"""Types of agents by the names that workflow files have for them, the better one first."""
STAND_IN: Final = "demo"
"""The type of agents that needs no key, and works for a runner that nobody has set up yet."""


class NoSuchAgent(Exception):
    """No profile is what the node asks for; the message is for people."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who works for a node. ``model``: what its session asks the agent for, empty for the profile's own."""

    profile: AgentProfile
    model: str = ""
    stands_in: bool = False
    """The demo agent works in place of the runner; it has no models."""


@dataclass(frozen=True, slots=True)
class Agents:
    """Who works for all agent nodes of a workflow."""

    missing: tuple[str, ...] = ()
    """A sentence for each node that nobody can work for."""
    stand_ins: tuple[str, ...] = ()
    """The runners that the demo agent stands in for."""


def choose(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str, model: str) -> Choice:
    """Who works for a node: by its runner, else the run's ``own`` profile. Raises NoSuchAgent.

    A runner is a word of workflow files, a profile's name, or a type of agents. A profile that has the node's model
    goes before others; where none has it, the session asks its agent for that model. Where no profile is of a
    runner that Kandev knows, the demo agent stands in if it is the run's own, or the only agent there is.
    """
    fitting = _of_runner(profiles, own, runner)
    if not fitting:
        if (stand_in := _stand_in(profiles, own, runner)) is not None:
            return Choice(stand_in, stands_in=True)
        raise NoSuchAgent(_nobody(profiles, runner))
    found = next((one for one in fitting if model and one.model == model), fitting[0])
    if model and found.agent_type == STAND_IN:
        raise NoSuchAgent(f"“{found.name}” is the demo agent, which has no model “{model}”. Leave the model out.")
    return Choice(found, "" if found.model == model else model)


def agents_of(graph: Graph, profiles: Sequence[AgentProfile], own: AgentProfile | None) -> Agents:
    """Who would work for each agent node of a workflow, those in loops and components too, before any of it runs."""
    missing: dict[str, None] = {}
    stand_ins: dict[str, None] = {}
    for node in all_nodes(graph.root):
        if not isinstance(node.settings, AgentSettings):
            continue
        runner = node.settings.runner or ""
        try:
            if choose(profiles, own, runner, node.settings.model or "").stands_in:
                stand_ins[runner] = None
        except NoSuchAgent as error:
            missing[f"Node “{node.id}”: {error}"] = None
    return Agents(tuple(missing), tuple(stand_ins))


def stand_in_note(runners: Iterable[str]) -> str:
    """What is said where the demo agent stands in; empty where it does not."""
    names = " and ".join(f"“{one}”" for one in runners)
    if not names:
        return ""
    return f"No agent profile is of the runner {names}, so the demo agent stands in. Staff can add a profile."


def _of_runner(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> list[AgentProfile]:
    """The profiles that fit, the run's own before others."""
    if not runner:
        rest = [one for one in profiles if own and one.agent_type == own.agent_type and one.id != own.id]
        return [own, *rest] if own else list(profiles) if len(profiles) == 1 else []
    types = _types_of(runner)

    def rank(one: AgentProfile) -> tuple[bool, bool, int]:
        is_named = one.name.lower() == runner.lower()
        return own is None or one.id != own.id, not is_named, 0 if is_named else types.index(one.agent_type)

    return sorted((one for one in profiles if one.name.lower() == runner.lower() or one.agent_type in types), key=rank)


def _types_of(runner: str) -> tuple[str, ...]:
    return RUNNERS.get(runner.lower(), (runner.lower().replace("-", "_"),))


def _stand_in(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> AgentProfile | None:
    if not any(one in agent_types() for one in _types_of(runner)):
        return None  # a name that nobody knows is a mistake
    if own is not None:
        return own if own.agent_type == STAND_IN else None
    return profiles[0] if profiles and all(one.agent_type == STAND_IN for one in profiles) else None


def _nobody(profiles: Sequence[AgentProfile], runner: str) -> str:
    has = ", ".join(f"“{one.name}” ({one.agent_type})" for one in profiles) or "none at all"
    if not runner:
        return f"the node names no runner, and the run no agent profile. Name one; there is {has}."
    return f"no agent profile is of the runner “{runner}”. Staff can add one; there is {has}."
