"""Choose the agent profile of each agent node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from executors_app.models import AgentProfile
from executors_app.plugins import agent_types
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.nodes.agent import AgentSettings
from sessions_app.workflows.services.run_records import iterate_nodes

RUNNERS: Final[dict[str, tuple[str, ...]]] = {
    "claude-code": ("claude_code", "claude_cli"),
    "codex": ("codex", "codex_cli"),
    "openai": ("openai_chat",),
    "gemini-cli": ("gemini", "gemini_cli"),
}
"""Agent types for the runner names of workflow files, the preferred one first."""
DEMO_AGENT_TYPE: Final = "demo"
"""The agent type that needs no key, and can replace a runner that is not set up yet."""


class NoMatchingAgent(Exception):
    """No agent profile matches the node; users see the message."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agent profile for a node. ``model`` is what its session requests from the agent; “” for the profile's own."""

    profile: AgentProfile
    model: str = ""
    is_demo_agent: bool = False
    """Whether the demo agent, which has no models, replaces the runner."""


def choose_agent(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str, model: str) -> AgentChoice:
    """Return the agent profile for a node: by its runner, or else the run's ``own`` profile. Raises NoMatchingAgent.

    A runner is a runner name of workflow files, the name of a profile, or an agent type. A profile with the node's
    model is preferred; if there is none, the session requests that model from the agent. If no profile matches a runner
    that Kandev knows, the demo agent replaces it, provided that it is the run's own agent or the only one.
    """
    matching = _profiles_for_runner(profiles, own, runner)
    if not matching:
        demo = _demo_profile(profiles, own, runner)
        if demo is None:
            raise NoMatchingAgent(_no_match_message(profiles, runner))
        return AgentChoice(demo, is_demo_agent=True)
    if not model:
        return AgentChoice(matching[0])
    with_model = [profile for profile in matching if profile.model == model]
    chosen = (with_model or matching)[0]
    if chosen.agent_type == DEMO_AGENT_TYPE:
        raise NoMatchingAgent(f"“{chosen.name}” is the demo agent, which has no model “{model}”. Remove the model.")
    if with_model:
        return AgentChoice(chosen)
    return AgentChoice(chosen, model)


def choose_agents(
    graph: WorkflowGraph, profiles: Sequence[AgentProfile], own: AgentProfile | None
) -> tuple[list[str], list[str]]:
    """Choose an agent for each agent node of a workflow, including those in loops and components, before it runs.

    Return a sentence for each node without a matching agent profile, and the runners that the demo agent replaces.
    """
    missing: dict[str, None] = {}
    demo_runners: dict[str, None] = {}
    for node in iterate_nodes(graph.root):
        if not isinstance(node.settings, AgentSettings):
            continue
        runner = node.settings.runner or ""
        try:
            if choose_agent(profiles, own, runner, node.settings.model or "").is_demo_agent:
                demo_runners[runner] = None
        except NoMatchingAgent as error:
            missing[f"Step “{node.id}”: {error}"] = None
    return list(missing), list(demo_runners)


def demo_agent_note(runners: Iterable[str]) -> str:
    """Return a note that the demo agent replaces these runners; empty without any."""
    names = " and ".join(f"“{runner}”" for runner in runners)
    if not names:
        return ""
    return (
        f"No agent profile matches the runner {names}, so the demo agent is used instead. Ask staff to add a profile."
    )


def _profiles_for_runner(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> list[AgentProfile]:
    """Return the profiles that match a runner, the run's own first."""
    if not runner:
        if own is None:
            # Without a name, a team's only profile is meant; among several, nobody has chosen one.
            if len(profiles) == 1:
                return list(profiles)
            return []
        rest = [profile for profile in profiles if profile.agent_type == own.agent_type and profile.id != own.id]
        return [own, *rest]
    types = _agent_types_for_runner(runner)

    def matches(profile: AgentProfile) -> bool:
        return profile.name.lower() == runner.lower() or profile.agent_type in types

    def rank(profile: AgentProfile) -> tuple[bool, bool, int]:
        is_own = own is not None and profile.id == own.id
        if profile.name.lower() == runner.lower():
            return not is_own, False, 0
        return not is_own, True, types.index(profile.agent_type)

    return sorted(filter(matches, profiles), key=rank)


def _agent_types_for_runner(runner: str) -> tuple[str, ...]:
    return RUNNERS.get(runner.lower(), (runner.lower().replace("-", "_"),))


def _demo_profile(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> AgentProfile | None:
    if not any(agent_type in agent_types() for agent_type in _agent_types_for_runner(runner)):
        return None  # an unknown runner is probably a typing mistake, which the demo agent must not hide
    if own is not None:
        if own.agent_type == DEMO_AGENT_TYPE:
            return own
        return None
    if profiles and all(profile.agent_type == DEMO_AGENT_TYPE for profile in profiles):
        return profiles[0]
    return None


def _no_match_message(profiles: Sequence[AgentProfile], runner: str) -> str:
    available = ", ".join(f"“{profile.name}” ({profile.agent_type})" for profile in profiles) or "none"
    if not runner:
        return f"the step names no runner, and the run has no agent profile. Choose one; available: {available}."
    return f"no agent profile matches the runner “{runner}”. Ask staff to add one; available: {available}."
