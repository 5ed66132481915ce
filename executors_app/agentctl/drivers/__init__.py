"""The interface of drivers: each speaks one conversation protocol with one agent process.

A driver gets argv, environment, cwd, strategy and token, and knows no product names beyond its protocol. It reports
through its ``Host`` and never touches the journal, the HTTP API or the disk: conversations that the agent does not
store itself go into ``Host.conversations``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.wire.protocol import Code, JournalKind, LeftOutReason

Strategy = Literal["native", "history", "fresh"]


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """``login`` of the body of ``POST /agent/start``."""

    action: str
    """One of ``LoginAction``. After a logout the start fails with *auth_required*."""
    method: str
    """Id of one of the agent's methods of type *agent*; empty for a logout."""
    timeout: float
    """Seconds for the agent's answer, in addition to the time limit of the start."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The checked body of ``POST /agent/start``."""

    launch_id: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    strategy: Strategy
    driver: str = "acp"
    resume_token: str | None = None
    model: str | None = None
    mode: str | None = None
    """Id or name of one of the agent's own modes, such as ``plan``; selected at every start, like the model."""
    additional_directories: Sequence[str] = ()
    """Absolute paths that the agent may work in, in addition to ``cwd``."""
    settings: Sequence[Mapping[str, Any]] = ()
    """Changes ``{"change_id", "setting", "value"}`` that users chose in this session, in order; applied before the
    first prompt, after ``model`` and ``mode``."""
    mcp_servers: Sequence[Mapping[str, Any]] = ()
    permission_mode: Literal["ask", "auto_approve"] = "ask"
    gone_patterns: Sequence[str] = ()
    """Regular expressions of the agent type: a matching error means that the conversation is gone."""
    prefer_load: bool = True
    last_message_uuid: str | None = None
    """The agent's id of the last message of its last finished turn; some agents can resume at exactly that."""
    timeout: float = 60.0
    """Seconds for the whole handshake, without the login."""
    load_timeout: float = 0.0
    """Seconds for a handshake that restores a conversation, if that is more than ``timeout``."""
    expected_requests: int = 0
    """Number of user texts that the whole replay should contain: some agents replay after they have answered."""
    known_conversations: frozenset[str] = frozenset()
    """Fingerprints (``token_fingerprint``) of the session's earlier conversations: an agent that is asked for a new one
    may continue one of them, because it goes by directory."""
    login: LoginRequest | None = None
    """A login or logout before the conversation is opened; only ACP agents have one."""

    @property
    def time_limit(self) -> float:
        """Seconds for handshake and login together."""
        if self.login is None:
            return self.handshake_limit
        return self.handshake_limit + self.login.timeout

    @property
    def handshake_limit(self) -> float:
        """Seconds for the whole handshake: an agent may need long to load a long conversation."""
        if self.strategy == "native":
            return max(self.timeout, self.load_timeout)
        return self.timeout

    def accepted_servers(self, transports: Collection[str]) -> list[Mapping[str, Any]]:
        """Return the programs, which every ACP agent starts, and the servers of ``transports``: *http*, *sse*."""
        return [server for server in self.mcp_servers if _refusal(server, transports) is None]

    def report_left_out(self, record: Callable[..., Any], transports: Collection[str] | None) -> None:
        """Record which servers the agent does not take; ``transports`` is None if it takes none."""
        left_out = [
            {"name": str(server.get("name", "")), "reason": str(reason)}
            for server in self.mcp_servers
            if (reason := _refusal(server, transports)) is not None
        ]
        if left_out:
            record(JournalKind.MCP_SERVERS_LEFT_OUT, launch_id=self.launch_id, servers=left_out)


def _refusal(server: Mapping[str, Any], transports: Collection[str] | None) -> LeftOutReason | None:
    if transports is None:
        return LeftOutReason.UNSUPPORTED
    transport = server.get("type", "http")
    if "url" not in server or transport in transports:
        return None
    if transport == "sse":
        return LeftOutReason.SSE_UNSUPPORTED
    return LeftOutReason.HTTP_UNSUPPORTED


@dataclass(frozen=True, slots=True)
class StartResult:
    """The result of a start; the answer of ``POST /agent/start`` adds ``launch_id``."""

    outcome: Literal["resumed", "loaded", "created"]
    resume_token: str | None
    """None if the agent names its new conversation only in its first turn: ``keep_token`` reports it then."""
    agent: Mapping[str, Any]
    """``{"name", "version"}`` as the agent reports them."""
    capabilities: Mapping[str, Any]
    """``{"load_session", "resume_session", "history", "protocol", "prompt"}``.

    ``prompt`` lists the kinds of content blocks that it takes in a prompt beside text: ``image``, ``audio``,
    ``resource``.
    """
    replayed: int = 0
    replayed_user_texts: Sequence[str] = ()
    replayed_user_digests: Sequence[str] = ()
    """Of all replayed user texts (``replayed_texts.text_digest``), oldest first; empty if the driver gives none."""
    listed: bool | None = None
    """After a restored conversation without a replay: whether the agent lists it; None if that is not known."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds: spawn, initialize, session."""
    unkept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Claimed capabilities that failed when they were used: ``{"how": CapabilityShortfall, "said": text}`` by name."""
    auth: Mapping[str, Any] = field(default_factory=dict)
    """``{"methods", "logout"}``: ways to log in (see ``agent_settings``), and if it can log out; empty: unknown."""
    login: Mapping[str, Any] = field(default_factory=dict)
    """``{"state", "code", "reason"}`` of the login that the request asked for; empty: it asked for none."""


class StartFailed(Exception):
    """The agent did not start; ``token_valid`` is False only if the agent itself reports the conversation as gone.

    ``told``, a name that agentctl also stores and answers with, is what the agent reported before it failed:
    ``{"agent", "capabilities", "unkept", "auth"}`` as in ``StartResult``, and ``login`` if one was asked for; empty if
    there is nothing.
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


class SettingRefused(Exception):
    """The agent did not accept the change of a setting; the message is the reason."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message


CONVERSATION_LOST: Final = frozenset({Code.TOKEN_REJECTED, Code.CONTEXT_MISMATCH, Code.CONVERSATION_CLOSED})
"""Codes of a turn which showed that the agent is not in its conversation: it is stopped and gets no more prompts."""


class TurnFailed(Exception):
    """The agent answered a prompt with an error, or ended during the turn.

    ``retry_after``: seconds to wait before the next attempt, if the provider named them.
    """

    def __init__(self, code: str, message: str, *, retry_after: float | None = None):
        super().__init__(message)
        self.code, self.message, self.retry_after = code, message, retry_after


class Host(Protocol):
    """What the sidecar offers to a driver."""

    @property
    def conversations(self) -> ConversationStore:
        """Where a driver stores the conversation if the agent does not."""
        ...

    def record(self, kind: str, **body: Any) -> int:
        """Append a journal line and return its seq. Never blocks, and accepts any values."""
        ...

    async def wait_for_room(self) -> None:
        """Wait until the journal accepts more lines; the driver calls it before it reads on."""
        ...

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        """Save the agent's own conversation id: on disk before this returns, so that no reported start loses it."""
        ...

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Wait until a permission is answered; None if it was cancelled.

        ``request`` is ``{"tool_call": {...}, "options": [{"option_id", "name", "kind"}]}``.
        """
        ...

    async def ask_question(self, request: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Wait until a question is answered or cancelled; return the action of ACP and the content of a form.

        ``request`` is ``{"tool_call": {...}, "question": {...}}``, with a question of ``questions.schema``.
        """
        ...

    def complete_question(self, elicitation_id: str) -> bool:
        """Close an open question with a link, because the user has completed it; return False if there is none."""
        ...

    def agent_gone(self, exit_code: int | None) -> None:
        """Report that the agent process ended, whoever ended it; called once per process.

        An agent with a process per turn reports only a process that ended during a turn: its normal exit at the
        end of the turn is not the end of the agent.
        """
        ...


class Driver(Protocol):
    """One conversation with one agent process; ``create(host, marker)`` of each module makes it.

    ``marker`` is ``{"KANDEV_EXECUTION_ID": ..., ...}`` and goes into the agent's environment.

    Some agents have one process per turn, or none at all. Between turns such an agent is idle without a process:
    ``pid`` is None, ``agent_gone`` is not called, and the next prompt continues the same conversation. It counts as
    alive while no turn is open, or while the process of the open turn lives.

    Whether such an agent really resumed shows only in its first turn: ``StartResult`` says ``resumed``, and a turn
    that names another conversation, or none, fails with a code of ``CONVERSATION_LOST``. No driver ever continues in
    a new conversation on its own.
    """

    @property
    def pid(self) -> int | None:
        """The agent's pid while its process is running."""
        ...

    async def start(self, request: StartRequest) -> StartResult:
        """Start the agent and open or restore the conversation; raises StartFailed, which leaves no process."""
        ...

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any, kind: str = "user"
    ) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel).

        ``kind`` says who wrote the prompt: *user*, or *continue*, *wait*, *retry* or *check* for prompts of Kandev. A
        driver passes it to the agent where the protocol can carry it. Calls ``delivered()`` once the text is written to
        the agent. Raises TurnFailed.
        """
        ...

    async def cancel(self) -> None:
        """Ask the agent to end the active turn; open permissions are cancelled by the sidecar."""
        ...

    async def stop(self, grace: float) -> int | None:
        """End the whole process tree (TERM, after ``grace`` seconds KILL); returns the exit code.

        Where an agent reads its input to the end, an idle one may first end by itself.
        """
        ...


@runtime_checkable
class SupportsOwnWork(Protocol):
    """A driver whose agent may work without a prompt, and can be asked to end that."""

    async def cancel_own_work(self) -> None:
        """Ask the agent to end what it does without a prompt; without effect during a turn."""
        ...


@runtime_checkable
class SupportsSettings(Protocol):
    """A driver whose agent has settings that can be changed at any time, also during a turn."""

    async def change_setting(self, setting_id: str, value: str | bool, sent: Callable[[], Any]) -> None:
        """Change a setting; ``sent()`` is called once the request is written to the agent.

        Returns when the agent has the value. Raises SettingRefused, or AgentGone if the agent ended first.
        """
        ...


class SteeringRefused(Exception):
    """The agent has certainly not taken a text for its running turn; the message is the reason."""


@runtime_checkable
class SupportsSteering(Protocol):
    """A driver whose agent may take a text into the turn that is running."""

    @property
    def steers(self) -> bool:
        """Whether the agent has announced that it does."""
        ...

    async def steer(self, text: str, attachments: Sequence[Mapping[str, Any]], sent: Callable[[], Any]) -> None:
        """Hand a text to the running turn; ``sent()`` is called once it is written to the agent.

        Returns when the agent has taken it. Raises SteeringRefused if it certainly has not; after any other exception
        it is unknown.
        """
        ...


@runtime_checkable
class KeepsProcesses(Protocol):
    """A driver with a process per turn: what a turn leaves running outlives that process."""

    def guard_pids(self) -> Sequence[int]:
        """Return the guards of ended turns under which something still runs."""
        ...


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """What came of a request to delete the agent's transcript."""

    reason: str = ""
    """Why it was not deleted; empty: the agent reports that it was."""
    is_confirmed: bool = False
    """Whether more than the agent's report shows it: the agent no longer lists the conversation."""


@runtime_checkable
class SupportsDeletion(Protocol):
    """A driver whose agent can delete its own transcript of the conversation."""

    async def delete_conversation(self) -> DeletionResult:
        """End the open turn and delete the transcript; return what came of it."""
        ...
