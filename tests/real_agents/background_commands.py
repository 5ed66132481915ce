"""How each published agent leaves a command running when its turn has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from scripts.documents.markdown import markdown_table
from tests.real_agents.homes import AGENT_TYPES

_PLAIN: Final = "in the background of its shell (`&`)"
_OWN_SESSION: Final = "only in a session of its own (`setsid … &`): the agent ends what else its shell leaves"


@dataclass(frozen=True)
class Leaving:
    """What outlives the turns of one agent."""

    what: str
    """For the document."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What its environment needs for that."""

    @property
    def prefix(self) -> str:
        """What precedes the command in the shell."""
        return "setsid " if self.what == _OWN_SESSION else ""


LEAVING: Final[Mapping[str, Leaving]] = {
    "agentao": Leaving(_PLAIN),
    "claude-agent-acp": Leaving(_PLAIN),
    "codex": Leaving(_OWN_SESSION),
    # Its sandbox would end what a command leaves.
    "codex-acp": Leaving(_OWN_SESSION, {"INITIAL_AGENT_MODE": "agent-full-access"}),
    "deepagents": Leaving(_PLAIN),
    "kimi-code": Leaving(_PLAIN),
    "opencode": Leaving(_PLAIN),
    "qwen-code": Leaving(_OWN_SESSION),
}
"""Every published agent that the tests run."""


def command_for(name: str, command: str) -> str:
    """Return what the agent's shell is to run, so that ``command`` is left running.

    Each run of it adds its pid to the file *left*; the shell ends when it has, as some agents then end what else runs.
    """
    background = f"{LEAVING[name].prefix}sh -c 'echo $$ >>left; exec {command}' >/dev/null 2>&1 &"
    return f"{background} until test -s left; do sleep 0.1; done"


def document_table() -> str:
    """Return the table for the document about restarts."""
    rows = sorted((f"`{AGENT_TYPES[name]}`", leaving.what) for name, leaving in LEAVING.items())
    return markdown_table(("agent type", "what outlives its turns"), rows)
