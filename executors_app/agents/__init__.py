"""The contract of an agent type: each module of this package declares one kind of agent.

A module defines ``AGENT_TYPE``, which ``executors_app.plugins`` finds. No other file has to be edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from executors_app.domain import LOCAL


@dataclass(frozen=True, slots=True)
class SeedClaim:
    """What the original design document says about an agent type, for comparison in ``docs/agents.md``."""

    native: bool
    """Whether it restores its own conversation (NativeSessionResume)."""
    history: bool
    """Whether it gets the history with the next prompt (HistoryContextInjection)."""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class AgentType:
    """What is known of one kind of agent; every claim is checked against the running agent."""

    name: str
    title: str
    driver: str = "acp"
    argv: Sequence[str] = ()
    """Empty: the profile names the command, which only staff can set."""
    argv_elsewhere: Sequence[str] = ()
    """On every runtime but ``local_standalone``, where a path of this machine means nothing; empty: ``argv``."""
    env: Mapping[str, str] = field(default_factory=dict)
    supports_session_resume: bool = True
    """Whether it may restore its own conversation; the running agent can only deny it."""
    supports_workspace_only: bool = True
    history_context_injection: bool = False
    prefer_load: bool = True
    """Whether to try ``session/load`` before ``session/resume``, because a replay can be verified."""
    replays_on_load: bool = False
    """Known to replay the conversation on load: an empty replay then contradicts the log.

    False: an empty replay is unproven, until an agent of this name and version has replayed something.
    """
    gone_patterns: Sequence[str] = ()
    """Regular expressions over error texts that say the conversation itself is gone; a profile may add its own.

    ACP's *resource not found* (-32002) that names the conversation says so for every type.
    """
    errs_about_gone: bool = False
    """Whether it may wrongly report *gone*: only two reports 90 s apart set the token aside."""
    needs: Sequence[str] = ()
    """Executables that must be on PATH."""
    install: str = ""
    """The command that installs them; empty: it ships with Kandev, or the profile names its own."""
    login: str = ""
    """The command that logs it in once; empty: none is known."""
    key: str = ""
    """The environment variable that logs it in instead; empty: none is known."""
    notes: str = ""
    """For ``docs/agents.md``: where it keeps its conversations, how it logs in, what was measured."""
    seed: SeedClaim | None = None
    """None: the design document does not mention it."""
    differs_from_seed: str = ""
    """Why the declaration differs from the seed; empty exactly where resume and history agree."""

    @property
    def names_conversation(self) -> bool:
        """Whether each turn names its conversation: command lines do, a turn of ACP does not."""
        return self.driver.endswith("_cli")

    def argv_on(self, runtime: str) -> Sequence[str]:
        """Return the command for the runtime where the agent runs."""
        return self.argv_elsewhere if self.argv_elsewhere and runtime != LOCAL else self.argv
