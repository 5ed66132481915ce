"""Decide who may run a workflow, on which executor, and which agent profile works for each agent node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.models import AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, agent_types
from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.models import TeamRole
from sessions_app.workflows.language.graph import WorkflowGraph as Graph
from sessions_app.workflows.nodes.agent import AgentSettings
from sessions_app.workflows.services.run_records import iterate_nodes, node_types_of

UNISOLATED_REFUSAL: Final = (
    "Shell nodes on “{place}” run beside the control plane: that takes staff, or a team that was given "
    "operate_unisolated."
)


def default_executor(named: Executor | None) -> Executor | None:
    """The executor that was named, else the one on this machine, else the first there is."""
    places = Executor.objects.order_by("name")
    return named or places.filter(runtime="local_standalone").first() or places.first()


def may_run(user: Any, team: Any, executor: Executor, graph: Graph) -> bool:
    """Whether ``user`` may have ``graph`` run on ``executor``: shell nodes where nothing is isolated want more.

    That ``user`` may write in ``team`` at all is asked by ``rights.may_write``.
    """
    return bool(user is not None and user.is_staff) or not _requires_staff(team, executor, graph)


def run_refusal(user: Any, team: Any, executor: Executor | None, graph: Graph) -> str:
    """Why ``user`` may not have ``graph`` run for ``team`` now, as a sentence; empty where it is allowed."""
    if user is None:
        return "The account with whose rights it runs was deleted."
    name = user.get_username()
    if not user.is_active:
        return f"{name} no longer has an active account."
    if not may_write(user, team):
        return f"{name} is not a member of the team who may write."
    if executor is None:
        return "There is no executor yet. Staff can add one."
    if not may_run(user, team, executor, graph):
        return f"{UNISOLATED_REFUSAL.format(place=executor.name)} {name} is not staff."
    return ""


def describe_required_rights(team: Any, executor: Executor | None, graph: Graph | None) -> str:
    """Whose rights suffice for a run, as a sentence."""
    if executor is not None and graph is not None and _requires_staff(team, executor, graph):
        return (
            f"A member of the team who is staff can do that, because its shell nodes run on “{executor.name}” beside "
            "the control plane."
        )
    return "Any member of the team who is not a viewer can do that."


def _requires_staff(team: Any, executor: Executor, graph: Graph) -> bool:
    """Whether a member of the team needs to be staff: it has scripts, nothing isolates them, nobody trusts the team."""
    if "shell" not in node_types_of(graph):
        return False
    try:
        if not executor.trusted_agents_only:
            return False
    except UnknownPlugin:
        return True  # nobody knows whether it isolates anything
    given = team.permissions.filter(codename="operate_unisolated")
    return not given.filter(content_type__app_label=TeamRole._meta.app_label).exists()


RUNNERS: Final[dict[str, tuple[str, ...]]] = {
    "claude-code": ("claude_code", "claude_cli"),
    "codex": ("codex", "codex_cli"),
    "openai": ("openai_chat",),
    "gemini-cli": ("gemini", "gemini_cli"),
}
"""Types of agents by the names that workflow files have for them, the better one first."""
DEMO_AGENT_TYPE: Final = "demo"
"""The type of agents that needs no key, and works for a runner that nobody has set up yet."""


class NoMatchingAgent(Exception):
    """No profile is what the node asks for; the message is for people."""


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """Who works for a node. ``model``: what its session asks the agent for, empty for the profile's own."""

    profile: AgentProfile
    model: str = ""
    is_demo_agent: bool = False
    """The demo agent works in place of the runner; it has no models."""


@dataclass(frozen=True, slots=True)
class WorkflowAgents:
    """Who works for all agent nodes of a workflow."""

    missing: tuple[str, ...] = ()
    """A sentence for each node that nobody can work for."""
    stand_ins: tuple[str, ...] = ()
    """The runners that the demo agent stands in for."""


def choose_agent(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str, model: str) -> AgentChoice:
    """Who works for a node: by its runner, else the run's ``own`` profile. Raises NoSuchAgent.

    A runner is a word of workflow files, a profile's name, or a type of agents. A profile that has the node's model
    goes before others; where none has it, the session asks its agent for that model. Where no profile is of a
    runner that Kandev knows, the demo agent stands in if it is the run's own, or the only agent there is.
    """
    fitting = _profiles_for_runner(profiles, own, runner)
    if not fitting:
        if (stand_in := _demo_profile(profiles, own, runner)) is not None:
            return AgentChoice(stand_in, is_demo_agent=True)
        raise NoMatchingAgent(_no_match_message(profiles, runner))
    found = next((profile for profile in fitting if model and profile.model == model), fitting[0])
    if model and found.agent_type == DEMO_AGENT_TYPE:
        raise NoMatchingAgent(f"“{found.name}” is the demo agent, which has no model “{model}”. Leave the model out.")
    return AgentChoice(found, "" if found.model == model else model)


def choose_agents(graph: Graph, profiles: Sequence[AgentProfile], own: AgentProfile | None) -> WorkflowAgents:
    """Who would work for each agent node of a workflow, those in loops and components too, before any of it runs."""
    missing: dict[str, None] = {}
    stand_ins: dict[str, None] = {}
    for node in iterate_nodes(graph.root):
        if not isinstance(node.settings, AgentSettings):
            continue
        runner = node.settings.runner or ""
        try:
            if choose_agent(profiles, own, runner, node.settings.model or "").is_demo_agent:
                stand_ins[runner] = None
        except NoMatchingAgent as error:
            missing[f"Node “{node.id}”: {error}"] = None
    return WorkflowAgents(tuple(missing), tuple(stand_ins))


def demo_agent_note(runners: Iterable[str]) -> str:
    """What is said where the demo agent stands in; empty where it does not."""
    names = " and ".join(f"“{runner}”" for runner in runners)
    if not names:
        return ""
    return f"No agent profile is of the runner {names}, so the demo agent stands in. Staff can add a profile."


def _profiles_for_runner(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> list[AgentProfile]:
    """The profiles that fit, the run's own before others."""
    if not runner:
        rest = [
            profile for profile in profiles if own and profile.agent_type == own.agent_type and profile.id != own.id
        ]
        return [own, *rest] if own else list(profiles) if len(profiles) == 1 else []
    types = _agent_types_for_runner(runner)

    def rank(one: AgentProfile) -> tuple[bool, bool, int]:
        is_named = one.name.lower() == runner.lower()
        return own is None or one.id != own.id, not is_named, 0 if is_named else types.index(one.agent_type)

    return sorted(
        (profile for profile in profiles if profile.name.lower() == runner.lower() or profile.agent_type in types),
        key=rank,
    )


def _agent_types_for_runner(runner: str) -> tuple[str, ...]:
    return RUNNERS.get(runner.lower(), (runner.lower().replace("-", "_"),))


def _demo_profile(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> AgentProfile | None:
    if not any(agent_type in agent_types() for agent_type in _agent_types_for_runner(runner)):
        return None  # a name that nobody knows is a mistake
    if own is not None:
        return own if own.agent_type == DEMO_AGENT_TYPE else None
    return profiles[0] if profiles and all(profile.agent_type == DEMO_AGENT_TYPE for profile in profiles) else None


def _no_match_message(profiles: Sequence[AgentProfile], runner: str) -> str:
    has = ", ".join(f"“{profile.name}” ({profile.agent_type})" for profile in profiles) or "none at all"
    if not runner:
        return f"the node names no runner, and the run no agent profile. Name one; there is {has}."
    return f"no agent profile is of the runner “{runner}”. Staff can add one; there is {has}."
