"""Which agent profile a node means by ``runner`` and ``model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from executors_app.models import AgentProfile

RUNNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "claude-code": ("claude_code", "claude_cli"),
    "codex": ("codex", "codex_cli"),
    "openai": ("openai_chat",),
    "gemini-cli": ("gemini", "gemini_cli"),
}
"""Types of agents by the names that workflow files have for them, the better one first."""


class NoSuchAgent(Exception):
    """No profile is what the node asks for; the message is for people."""


def choose(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str, model: str) -> AgentProfile:
    """The profile of a node: by its runner, else the run's ``own``; with the model that it names.

    A runner is a word of workflow files, a profile's name, or a type of agents. A session has the model of its
    profile, so a node that names another wants a profile that has it. Raises NoSuchAgent.
    """
    fitting = _of_runner(profiles, own, runner)
    if not fitting:
        raise NoSuchAgent(_nobody(profiles, runner))
    if not model:
        return fitting[0]
    found = next((one for one in fitting if one.model == model), None)
    if found is None:
        has = ", ".join(f"“{one.name}” ({one.model or 'its own choice'})" for one in fitting)
        raise NoSuchAgent(
            f"no agent profile has the model “{model}”; a session has the model of its profile. Staff can add a "
            f"profile with it, or the node can leave the model out. There is {has}."
        )
    return found


def _of_runner(profiles: Sequence[AgentProfile], own: AgentProfile | None, runner: str) -> list[AgentProfile]:
    """The profiles that fit, the run's own before others."""
    if not runner:
        rest = [one for one in profiles if own and one.agent_type == own.agent_type and one.id != own.id]
        return [own, *rest] if own else list(profiles) if len(profiles) == 1 else []
    types = RUNNERS.get(runner.lower(), (runner.lower().replace("-", "_"),))

    def rank(one: AgentProfile) -> tuple[bool, bool, int]:
        is_named = one.name.lower() == runner.lower()
        return own is None or one.id != own.id, not is_named, 0 if is_named else types.index(one.agent_type)

    return sorted((one for one in profiles if one.name.lower() == runner.lower() or one.agent_type in types), key=rank)


def _nobody(profiles: Sequence[AgentProfile], runner: str) -> str:
    has = ", ".join(f"“{one.name}” ({one.agent_type})" for one in profiles) or "none at all"
    if not runner:
        return f"the node names no runner, and the run no agent profile. Name one; there is {has}."
    return f"no agent profile is of the runner “{runner}”. Staff can add one; there is {has}."
