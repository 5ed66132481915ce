"""The wire between the control plane and agentctl: names, codes and shapes (interfaces 6).

Standard library alone: both sides import this module, and agentctl runs without Django.

A journal line is ``{"seq", "epoch", "ts", "kind", ...}``: ``seq`` rises by one from 1 in an
epoch, ``ts`` is seconds since 1970. What each kind adds:

===================== ===========================================================================
agent.starting        launch_id, strategy
agent.started         launch_id, pid, started_at, agent {name, version}, capabilities {...}
agent.exited          launch_id, exit_code, expected (asked for by a stop), message_id of the turn it broke or null
agent.failed          launch_id, code, message, permanent, token_valid
session.created       launch_id, fingerprint; also session.resumed and session.loaded, with
                      replayed (messages), replayed_user_texts (the last ones, cut)
session.identified    fingerprint, last_message_uuid (the token itself never enters the journal)
prompt.accepted       message_id, text, prompt_kind ("user", "continue", "wait", "check"); fsynced before delivery
prompt.delivered      message_id
message.user          text: what the agent attributes to the user and is not a prompt of ours
message.agent         text (a chunk); also message.thought
tool.call             tool_call_id, title, tool_kind, status, content, locations, raw_input
tool.update           tool_call_id and whatever of the above changed
plan                  entries
permission.requested  permission_id, message_id, tool_call {...}, options [{option_id, name, kind}]
permission.resolved   permission_id, option_id
permission.cancelled  permission_id, reason ("turn_cancelled", "agent_gone", "stopped", "timeout")
turn.completed        message_id, stop_reason, output (whether the agent said or did anything in it); also
                      turn.cancelled, and turn.failed with code, message, and retry_after (seconds) where the
                      provider said when to ask again
usage                 the agent's own figures
workspace.snapshot    ref, commit, reason ("turn_start", "turn_end", "shutdown", ...), dirty, left_out, left_out_count
log                   level, text, data
===================== ===========================================================================
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NotRequired, TypedDict

PROTOCOL_VERSION: Final = 1
"""Two adjacent versions understand each other (rule 24).

Each leaves unknown fields and kinds of lines alone, so what is only added needs no new version. An agentctl cannot be
upgraded while its agent lives: it is the control plane that judges whether it understands one (``is_understood``).
"""

GENERATION_HEADER: Final = "X-Kandev-Generation"


def is_understood(version: object) -> bool:
    """Whether a control plane of this version may command an agentctl that says it is of ``version``."""
    return isinstance(version, int) and abs(version - PROTOCOL_VERSION) <= 1


BUILT_IN_AGENT: Final = "kandev-demo-agent"
"""The command of the demo agent, as every agentctl knows it; container images have a program of that name, too."""
MARKER: Final = "KANDEV_EXECUTION_ID"
"""The environment variable that marks every process of an execution (design 5)."""

CLOSE_STALE_GENERATION: Final = 4409
"""WebSocket close code of an event stream whose generation is older than one seen."""
CLOSE_OVERTAKEN: Final = 4410
"""WebSocket close code of a shell that another reader has opened meanwhile."""


class Kind(StrEnum):
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
    MESSAGE_USER = "message.user"
    MESSAGE_AGENT = "message.agent"
    MESSAGE_THOUGHT = "message.thought"
    TOOL_CALL = "tool.call"
    TOOL_UPDATE = "tool.update"
    PLAN = "plan"
    PERMISSION_REQUESTED = "permission.requested"
    PERMISSION_RESOLVED = "permission.resolved"
    PERMISSION_CANCELLED = "permission.cancelled"
    TURN_COMPLETED = "turn.completed"
    TURN_CANCELLED = "turn.cancelled"
    TURN_FAILED = "turn.failed"
    USAGE = "usage"
    WORKSPACE_SNAPSHOT = "workspace.snapshot"
    AGENTCTL_ABANDONED = "agentctl.abandoned"
    LOG = "log"


TURN_ENDS: Final = frozenset({Kind.TURN_COMPLETED, Kind.TURN_CANCELLED, Kind.TURN_FAILED})
DURABLE_KINDS: Final = TURN_ENDS | {Kind.PROMPT_ACCEPTED, Kind.PERMISSION_RESOLVED, Kind.SESSION_IDENTIFIED}
"""Lines somebody waits for until they are on the disk; the others ride on the same batches."""


OUTPUT_KINDS: Final = frozenset({Kind.MESSAGE_AGENT, Kind.MESSAGE_THOUGHT, Kind.TOOL_CALL, Kind.PLAN})
"""Lines that show that a turn was worked on; a text without a character is none."""

QUOTING_KINDS: Final = frozenset({Kind.LOG, Kind.USAGE, Kind.AGENT_FAILED, Kind.TURN_FAILED})
"""Lines that may quote what an agent says of itself beside the conversation, its conversation's id among it."""


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
    HANDSHAKE_FAILED = "handshake_failed"
    START_TIMEOUT = "start_timeout"
    AUTH_REQUIRED = "auth_required"
    TOKEN_REJECTED = "token_rejected"  # noqa: S105  (a code, no secret)
    RESUME_UNSUPPORTED = "resume_unsupported"
    CONTEXT_MISMATCH = "context_mismatch"
    LAUNCH_ENDED = "launch_ended"
    # of a host daemon:
    INSTANCE_UNREACHABLE = "instance_unreachable"


class Shortfall(StrEnum):
    """How an agent did not do what it claims; ``how`` of the ``unkept`` in the answer to a start."""

    UNIMPLEMENTED = "unimplemented"
    """It says itself that it knows no such thing."""
    ERROR = "error"
    """It answered with an error, which was neither that the conversation is gone nor that it wants a login."""
    NO_ANSWER = "no_answer"
    ENDED = "ended"
    """It ended, or broke the connection, over it."""
    OTHER_CONVERSATION = "other_conversation"
    """It called it a success, and what it replayed contradicts our journal. Judged by the control plane."""
    NEW_CONVERSATION = "new_conversation"
    """It opened a new conversation instead. Judged by the control plane."""


class Turn(TypedDict):
    """``agent.active_turn`` of ``GET /status``."""

    message_id: str
    since: str


class AgentReport(TypedDict):
    """``agent`` of ``GET /status``."""

    state: str
    pid: int | None
    started_at: str | None
    session_fingerprint: str | None
    active_turn: Turn | None
    exit_code: int | None
    launch_id: str | None


class JournalReport(TypedDict):
    """``journal`` of ``GET /status``."""

    epoch: str
    first_seq: int
    last_seq: int
    trouble: NotRequired[str]
    """``disk_full`` or ``disk_failing`` while lines cannot be kept, or there is no room for last words."""


class Status(TypedDict):
    """The answer of ``GET /status``; ``pending_permissions`` are permission.requested bodies."""

    status: str
    version: int
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
    """How many run."""


class JobState(StrEnum):
    """``state`` of a job."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """Nobody can know how it ended, and it does not run any more; it is never run again by itself."""


class JobError(StrEnum):
    """``error`` of a job that did not end by itself; empty for one that did, whatever its exit code."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    AGENTCTL_ENDED = "agentctl_ended"
    """Its agentctl was ended, or died, in the middle of it; it ended then, as everything does that agentctl started."""
    SPAWN_FAILED = "spawn_failed"
    """It never began; ``stderr`` says why."""
    LOST = "lost"


class Job(TypedDict):
    """The answer of ``/jobs``: a script that was run once in the workspace."""

    job_id: str
    state: str
    exit_code: int | None
    """Negative for a signal; None while it runs, and where it never began or nobody can know."""
    stdout: str
    """The last MiB; bytes that are no UTF-8, and zero bytes, are U+FFFD."""
    stderr: str
    truncated: bool
    """Whether something of either stream is not in this answer: too much, too old, or a full disk."""
    error: str
    started_at: str
    """ISO 8601, as ``ended_at``."""
    ended_at: str | None
