"""What a driver is: one conversation protocol, spoken to one agent process (design 5).

A driver is told argv, environment, cwd, strategy and token; it knows no product names beyond
its protocol. It reports through its ``Host`` and never touches the journal, agentctl's HTTP or the
disk: what a far end does not keep itself goes into ``Host.conversations``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.protocol import Code

Strategy = Literal["native", "history", "fresh"]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The body of ``POST /agent/start``, checked."""

    launch_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    strategy: Strategy
    driver: str = "acp"
    resume_token: str | None = None
    model: str | None = None
    mode: str | None = None
    """Id or name of the agent's own mode, ``plan`` for instance; chosen anew at every start, as the model is."""
    additional_directories: Sequence[str] = ()
    """Absolute paths that the agent may work in beside ``cwd``."""
    mcp_servers: Sequence[Mapping[str, Any]] = ()
    permission_mode: Literal["ask", "auto_approve"] = "ask"
    gone_patterns: Sequence[str] = ()
    """Regular expressions of the agent type: an error that matches says the conversation is gone."""
    prefer_load: bool = True
    last_message_uuid: str | None = None
    """The agent's name for the last message of its last finished turn; some resume at exactly that."""
    fork: bool = False
    """With ``native``: go on in a copy of the conversation, and leave the one of the token as it is."""
    timeout: float = 60.0
    """Seconds for the whole handshake."""


@dataclass(frozen=True, slots=True)
class StartResult:
    """What a start came to; the answer of ``POST /agent/start`` adds ``launch_id``."""

    outcome: Literal["resumed", "loaded", "created"]
    resume_token: str | None
    """None: the agent names its new conversation in its first turn, and ``keep_token`` tells it then."""
    agent: Mapping[str, Any]
    """``{"name", "version"}`` as the agent told it."""
    capabilities: Mapping[str, Any]
    """``{"load_session", "resume_session", "history", "protocol"}``."""
    replayed: int = 0
    replayed_user_texts: Sequence[str] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds: spawn, initialize, session."""
    unkept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Claimed capabilities that did not come when asked for, by name: ``{"how": CapabilityShortfall, "said"}``."""


class StartFailed(Exception):
    """The agent did not start; ``token_valid`` is False only when the agent itself said *gone*.

    ``told``: who the agent is and what became of its claims, ``{"agent", "capabilities", "unkept"}`` as in
    ``StartResult``; empty where it had not told yet.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        permanent: bool = False,
        token_valid: bool = True,
        told: Mapping[str, Any] | None = None,
    ):
        super().__init__(message)
        self.code, self.message = code, message
        self.permanent, self.token_valid = permanent, token_valid
        self.told: dict[str, Any] = dict(told or {})


CONVERSATION_LOST: Final = frozenset({Code.TOKEN_REJECTED, Code.CONTEXT_MISMATCH})
"""Codes of a turn that showed that the agent is not in its conversation: it is stopped, and gets no other prompt."""


class TurnFailed(Exception):
    """The agent answered a prompt with an error, or went away in the middle of it.

    ``retry_after``: seconds until the provider wants to be asked again, where it said so.
    """

    def __init__(self, code: str, message: str, *, retry_after: float | None = None):
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after


class Host(Protocol):
    """What a driver may ask of the sidecar."""

    @property
    def conversations(self) -> ConversationStore:
        """Where a driver keeps what was said if its far end keeps nothing."""
        ...

    def record(self, kind: str, **body: Any) -> int:
        """Append a journal line; returns its seq. Never blocks and never raises on odd values."""
        ...

    async def room(self) -> None:
        """Wait while the journal has no room: the driver calls it before it reads on."""
        ...

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        """Keep the agent's own conversation id, on disk, before this returns (rule 22)."""
        ...

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Hold a permission open until it is answered; None when it was cancelled.

        ``request`` is ``{"tool_call": {...}, "options": [{"option_id", "name", "kind"}]}``.
        """
        ...

    def agent_gone(self, exit_code: int | None) -> None:
        """Tell that the agent process ended, whoever ended it; called once per process.

        Where each turn has a process of its own: that it ended in the middle of the turn. Its end with
        the turn is not the agent's.
        """
        ...


class Driver(Protocol):
    """One conversation with one agent process; ``create(host, marker)`` of each module makes it.

    ``marker`` is ``{"KANDEV_EXECUTION_ID": ..., ...}``, to be put into the agent's environment.

    Some agents have a process per turn, or none at all. Between two turns such an agent is idle and
    well without one: ``pid`` is None, nobody is told ``agent_gone``, and the next prompt goes on in the
    same conversation. It is alive as long as no turn is open or the process of that turn lives (rule 27).
    That it resumed what it was asked to resume, its first turn has to show: ``StartResult`` says ``resumed``,
    and a turn that shows another conversation, or none, fails with a code of ``CONVERSATION_LOST``. No
    driver ever goes on in a new conversation by itself.
    """

    @property
    def pid(self) -> int | None:
        """The agent's pid while its process lives."""
        ...

    async def start(self, request: StartRequest) -> StartResult:
        """Spawn, shake hands, open or restore the conversation; StartFailed leaves no process."""
        ...

    async def prompt(self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel).

        Calls ``delivered()`` once the text is written to the agent. Raises TurnFailed.
        """
        ...

    async def cancel(self) -> None:
        """Ask the agent to end the active turn; open permissions are cancelled by the sidecar."""
        ...

    async def stop(self, grace: float) -> int | None:
        """End the whole process tree (TERM, after ``grace`` seconds KILL); returns the exit code."""
        ...
