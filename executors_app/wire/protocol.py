"""The protocol between the control plane and agentctl: names, codes, answer shapes and the API error."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NotRequired, TypedDict

PROTOCOL_VERSION: Final = 1
"""Two adjacent versions understand each other.

Both sides ignore unknown fields and kinds of lines, so additions need no new version. An agentctl cannot be upgraded
while its agent runs, so the control plane decides whether it supports a given agentctl (``is_supported_version``).
"""

GENERATION_HEADER: Final = "X-Kandev-Generation"

BUILT_IN_AGENT: Final = "kandev-demo-agent"
"""The command of the demo agent: agentctl resolves it, and container images contain a program of that name."""
EXECUTION_MARKER: Final = "KANDEV_EXECUTION_ID"
"""The environment variable that marks every process of an execution."""

SOCKET_MESSAGE_LIMIT: Final = 128 << 20
"""Bytes of one WebSocket message of an agentctl: a frame of its journal has 64 KiB, or one line that is longer.

A line of an agent can have 64 MiB. An agentctl that the agent controls could otherwise fill its reader's memory.
"""

CLOSE_STALE_GENERATION: Final = 4409
"""WebSocket close code of an event stream whose generation is older than one seen."""
CLOSE_OVERTAKEN: Final = 4410
"""WebSocket close code of a shell that another client has opened since."""

WITHDRAWN: Final = "withdrawn"
"""Reason of a request that the agent itself withdrew, and the message with which its task is cancelled."""
_BAD_GATEWAY: Final = 502


def is_supported_version(version: object) -> bool:
    """Whether this control plane can work with an agentctl that reports ``version``."""
    return isinstance(version, int) and abs(version - PROTOCOL_VERSION) <= 1


class JournalKind(StrEnum):
    """The kinds of journal lines."""

    AGENT_STARTING = "agent.starting"
    AGENT_STARTED = "agent.started"
    AGENT_EXITED = "agent.exited"
    AGENT_FAILED = "agent.failed"
    SESSION_CREATED = "session.created"
    SESSION_RESUMED = "session.resumed"
    SESSION_LOADED = "session.loaded"
    SESSION_IDENTIFIED = "session.identified"
    PROMPT_ACCEPTED = "prompt.accepted"
    PROMPT_DELIVERED = "prompt.delivered"
    STEER_ACCEPTED = "steer.accepted"
    STEER_DELIVERED = "steer.delivered"
    STEER_DECLINED = "steer.declined"
    STEER_UNKNOWN = "steer.unknown"
    MESSAGE_USER = "message.user"
    MESSAGE_AGENT = "message.agent"
    MESSAGE_THOUGHT = "message.thought"
    MESSAGE_SUB_AGENT = "message.sub_agent"
    TOOL_CALL = "tool.call"
    TOOL_UPDATE = "tool.update"
    PLAN = "plan"
    PERMISSION_REQUESTED = "permission.requested"
    PERMISSION_RESOLVED = "permission.resolved"
    PERMISSION_CANCELLED = "permission.cancelled"
    TURN_COMPLETED = "turn.completed"
    TURN_CANCELLED = "turn.cancelled"
    TURN_FAILED = "turn.failed"
    AGENT_TURN_ENDED = "agent.turn_ended"
    USAGE = "usage"
    AGENT_SETTINGS = "agent.settings"
    AGENT_COMMANDS = "agent.commands"
    AGENT_TITLE = "agent.title"
    AGENT_PROCESSES = "agent.processes"
    MCP_SERVERS_LEFT_OUT = "agent.mcp_servers_left_out"
    SETTING_APPLIED = "setting.applied"
    SETTING_REFUSED = "setting.refused"
    WORKSPACE_SNAPSHOT = "workspace.snapshot"
    AGENTCTL_ABANDONED = "agentctl.abandoned"
    LOG = "log"


AGENT_TURN_PREFIX: Final = "agent:"
"""Begins the message id of a turn that an agent began without a prompt: its control plane has made it up."""

TURN_ENDS: Final = frozenset({JournalKind.TURN_COMPLETED, JournalKind.TURN_CANCELLED, JournalKind.TURN_FAILED})
DURABLE_KINDS: Final = TURN_ENDS | {
    JournalKind.PROMPT_ACCEPTED,
    JournalKind.STEER_ACCEPTED,
    JournalKind.PERMISSION_RESOLVED,
    JournalKind.SESSION_IDENTIFIED,
    JournalKind.SETTING_APPLIED,
    JournalKind.SETTING_REFUSED,
}
"""Lines that callers wait for until they are on disk; other lines are written in the same batches."""

TURN_OUTPUT_KINDS: Final = frozenset(
    {
        JournalKind.MESSAGE_AGENT,
        JournalKind.MESSAGE_THOUGHT,
        JournalKind.MESSAGE_SUB_AGENT,
        JournalKind.TOOL_CALL,
        JournalKind.TOOL_UPDATE,
        JournalKind.PLAN,
    }
)
"""Lines that count as output of a turn, unless their text is empty."""

QUOTING_KINDS: Final = frozenset(
    {
        JournalKind.LOG,
        JournalKind.USAGE,
        JournalKind.AGENT_FAILED,
        JournalKind.TURN_FAILED,
        JournalKind.AGENT_COMMANDS,
        JournalKind.AGENT_TITLE,
        JournalKind.AGENT_PROCESSES,
        JournalKind.SETTING_REFUSED,
    }
)
"""Lines that may quote technical output of an agent, and with it a conversation id: they are redacted."""


class LeftOutReason(StrEnum):
    """Why an agent was not given an MCP server."""

    HTTP_UNSUPPORTED = "http_unsupported"
    SSE_UNSUPPORTED = "sse_unsupported"
    UNSUPPORTED = "unsupported"
    """The agent accepts no servers from Kandev at all."""


class AgentState(StrEnum):
    """``agent.state`` of ``GET /status``."""

    NONE = "none"
    STARTING = "starting"
    IDLE = "idle"
    WORKING = "working"
    EXITED = "exited"
    FAILED = "failed"


ALIVE_AGENT_STATES: Final = frozenset({AgentState.STARTING, AgentState.IDLE, AgentState.WORKING})


class Code(StrEnum):
    """``code`` of an error answer ``{"code", "message", "details"}``."""

    VALIDATION_ERROR = "validation_error"
    NOT_AUTHENTICATED = "not_authenticated"
    FORBIDDEN_HOST = "forbidden_host"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    FORBIDDEN_PEER = "forbidden_peer"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    STALE_GENERATION = "stale_generation"
    BUSY = "busy"
    NOT_RUNNING = "not_running"
    ALREADY_RUNNING = "already_running"
    ALREADY_ANSWERED = "already_answered"
    CONFLICT = "conflict"
    FILE_CHANGED = "file_changed"
    JOB_UNKNOWN = "job_unknown"
    GIT_FAILED = "git_failed"
    TOO_LARGE = "too_large"
    WORKTREE_MISSING = "worktree_missing"
    JOURNAL_FULL = "journal_full"
    DISK_FULL = "disk_full"
    DISK_FAILING = "disk_failing"
    INTERNAL_ERROR = "internal_error"
    # of a failed start:
    SPAWN_FAILED = "spawn_failed"
    PROGRAM_MISSING = "program_missing"
    AGENT_EXITED = "agent_exited"
    AGENT_BUSY = "agent_busy"
    HANDSHAKE_FAILED = "handshake_failed"
    START_TIMEOUT = "start_timeout"
    AUTH_REQUIRED = "auth_required"
    TOKEN_REJECTED = "token_rejected"  # noqa: S105  (a code, no secret)
    RESUME_UNSUPPORTED = "resume_unsupported"
    CONTEXT_MISMATCH = "context_mismatch"
    CONVERSATION_CLOSED = "conversation_closed"
    LAUNCH_ENDED = "launch_ended"
    # of a change of a setting:
    UNKNOWN_SETTING = "unknown_setting"
    SETTING_REFUSED = "setting_refused"
    SETTINGS_UNSUPPORTED = "settings_unsupported"
    # of a text for a running turn:
    STEERING_UNSUPPORTED = "steering_unsupported"
    NO_TURN = "no_turn"
    # of a login or logout:
    LOGIN_FAILED = "login_failed"
    LOGIN_TIMEOUT = "login_timeout"
    LOGIN_UNSUPPORTED = "login_unsupported"
    # of a host daemon:
    INSTANCE_UNREACHABLE = "instance_unreachable"


class CapabilityShortfall(StrEnum):
    """How a claimed capability failed; ``how`` in ``unkept`` of the answer to a start."""

    UNIMPLEMENTED = "unimplemented"
    """The agent reports that it does not implement it."""
    ERROR = "error"
    """The agent answered with an error other than a missing conversation or a missing login."""
    NO_ANSWER = "no_answer"
    ENDED = "ended"
    """The agent ended, or closed the connection, instead of answering."""
    OTHER_CONVERSATION = "other_conversation"
    """The agent reported success, but its replay contradicts our journal. Decided by the control plane."""
    NEW_CONVERSATION = "new_conversation"
    """The agent opened a new conversation instead. Decided by the control plane."""


class LoginAction(StrEnum):
    """What a start may do before it opens the conversation; ``action`` of its ``login``."""

    LOGIN = "login"
    LOGOUT = "logout"


class LoginState(StrEnum):
    """The result of a login or logout: ``state`` of ``login`` in the answer to a start."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ActiveTurn(TypedDict):
    """``agent.active_turn`` of ``GET /status``."""

    message_id: str
    since: str


class AgentReport(TypedDict):
    """``agent`` of ``GET /status``."""

    state: str
    pid: int | None
    started_at: str | None
    session_fingerprint: str | None
    active_turn: ActiveTurn | None
    exit_code: int | None
    launch_id: str | None


class JournalReport(TypedDict):
    """``journal`` of ``GET /status``."""

    epoch: str
    first_seq: int
    last_seq: int
    trouble: NotRequired[str]
    """``disk_full`` or ``disk_failing`` while lines cannot be written, or the reserve for the last lines is missing."""


class Status(TypedDict):
    """The answer of ``GET /status``; ``pending_permissions`` are permission.requested bodies."""

    status: str
    version: int
    """The version of the protocol."""
    release: NotRequired[str]
    """The version of Kandev that this agentctl is part of."""
    boot_id: str
    capabilities: dict[str, Any]
    session_id: str
    execution_id: str
    generation: int
    agent: AgentReport
    journal: JournalReport
    pending_permissions: list[dict[str, Any]]
    workspace: dict[str, Any]
    jobs: NotRequired[int]
    """Number of running jobs."""
    background: NotRequired[list[str]]
    """Command lines of processes that turns of the agent have begun and that still run while it is idle."""


class JobState(StrEnum):
    """``state`` of a job."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """The job no longer runs and its result is unknown; it is never repeated automatically."""


class JobError(StrEnum):
    """``error`` of a job that did not exit on its own; empty for one that did, whatever its exit code."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    AGENTCTL_ENDED = "agentctl_ended"
    """Its agentctl ended while the job ran, and the job was killed with it."""
    SPAWN_FAILED = "spawn_failed"
    """The job never started; ``stderr`` contains the reason."""
    LOST = "lost"


class Job(TypedDict):
    """The answer of ``/jobs``: a script that runs once in the workspace."""

    job_id: str
    state: str
    exit_code: int | None
    """Negative for a signal; None while the job runs, if it never started, or if the result is unknown."""
    stdout: str
    """The last MiB; invalid UTF-8 and zero bytes become U+FFFD."""
    stderr: str
    truncated: bool
    """Whether output is missing: there was too much, it was deleted, or the disk was full."""
    error: str
    started_at: str
    """ISO 8601, as ``ended_at``."""
    ended_at: str | None


_HTTP_STATUS: Final[dict[str, int]] = {
    Code.VALIDATION_ERROR: 400,
    Code.NOT_AUTHENTICATED: 401,
    Code.FORBIDDEN_HOST: 403,
    Code.FORBIDDEN_ORIGIN: 403,
    Code.FORBIDDEN_PEER: 403,
    Code.NOT_FOUND: 404,
    Code.JOB_UNKNOWN: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.STALE_GENERATION: 409,
    Code.BUSY: 409,
    Code.NOT_RUNNING: 409,
    Code.ALREADY_RUNNING: 409,
    Code.ALREADY_ANSWERED: 409,
    Code.LAUNCH_ENDED: 409,
    Code.SETTINGS_UNSUPPORTED: 409,
    Code.STEERING_UNSUPPORTED: 409,
    Code.NO_TURN: 409,
    Code.CONFLICT: 409,
    Code.GIT_FAILED: 409,
    Code.FILE_CHANGED: 409,
    Code.WORKTREE_MISSING: 409,
    Code.TOO_LARGE: 413,
    Code.INTERNAL_ERROR: 500,
    Code.JOURNAL_FULL: 503,
}


class ApiError(Exception):
    """The error answer to a request; ``details`` are plain JSON."""

    def __init__(self, code: str, message: str, **details: Any):
        super().__init__(message)
        self.code, self.message, self.details = code, message, details

    @property
    def status(self) -> int:
        """The HTTP status; 502 for the codes of a failed start, which the agent caused."""
        return _HTTP_STATUS.get(self.code, _BAD_GATEWAY)


def validation_error(message: str, **details: Any) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(Code.VALIDATION_ERROR, message, **details)
