"""What a driver is: one conversation protocol, spoken to one agent process (design 5).

A driver is told argv, environment, cwd, strategy and token; it knows no product names beyond
its protocol. It reports through its ``Host`` and never touches the journal, HTTP or the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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
    mcp_servers: Sequence[Mapping[str, Any]] = ()
    permission_mode: Literal["ask", "auto_approve"] = "ask"
    gone_patterns: Sequence[str] = ()
    """Regular expressions of the agent type: an error that matches says the conversation is gone."""
    prefer_load: bool = True
    timeout: float = 60.0
    """Seconds for the whole handshake."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a start came to; the answer of ``POST /agent/start`` adds ``launch_id``."""

    outcome: Literal["resumed", "loaded", "created"]
    resume_token: str
    agent: Mapping[str, Any]
    """``{"name", "version"}`` as the agent told it."""
    capabilities: Mapping[str, Any]
    """``{"load_session", "resume_session", "history", "protocol"}``."""
    replayed: int = 0
    replayed_user_texts: Sequence[str] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds: spawn, initialize, session."""


class StartFailed(Exception):
    """The agent did not start; ``token_valid`` is False only when the agent itself said *gone*."""

    def __init__(self, code: str, message: str, *, permanent: bool = False, token_valid: bool = True):
        super().__init__(message)
        self.code, self.message = code, message
        self.permanent, self.token_valid = permanent, token_valid


class TurnFailed(Exception):
    """The agent answered a prompt with an error, or went away in the middle of it."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message


class Host(Protocol):
    """What a driver may ask of the sidecar."""

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
        """Tell that the agent process ended, whoever ended it; called once per process."""
        ...


class Driver(Protocol):
    """One conversation with one agent process; ``create(host, marker)`` of each module makes it.

    ``marker`` is ``{"KANDEV_EXECUTION_ID": ..., ...}``, to be put into the agent's environment.
    """

    @property
    def pid(self) -> int | None:
        """The agent's pid while its process lives."""
        ...

    async def start(self, request: StartRequest) -> Started:
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
