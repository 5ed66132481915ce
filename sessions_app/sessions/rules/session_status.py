"""The status of one session: the record that API, MCP server, pages and sockets serialise.

Times are ISO 8601 texts, because every reader but the situation sends them on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, TypedDict


class WaitStatus(TypedDict):
    """What the newest run waits for."""

    id: str
    kind: str
    reason: str
    since_seq: int
    deadline: str | None


class InterruptedWaitStatus(TypedDict):
    """A wait that ended without an answer."""

    id: str
    kind: str
    reason: str
    deadline: str | None
    at: str


class RetryStatus(TypedDict):
    """The next attempt of a failed turn."""

    message_id: str
    attempt: int
    of: int
    at: str | None
    error_code: str
    error_message: str
    text: str


class BudgetHoldStatus(TypedDict):
    """A budget that holds the next prompt back."""

    scope: str
    reason: str
    limit: str
    used: str
    since: str


class OwnWaitStatus(TypedDict):
    """The agent has announced in its open turn that it waits by itself, and then continues."""

    since: str
    until: str | None


class SuspensionStatus(TypedDict):
    """A usage limit of the agent or an outage of its provider, during which nothing is sent to it."""

    id: str
    reason: str
    message: str
    since: str
    resets_at: str | None
    zone: str
    until: str | None
    continuation: str


class CutOffTurnStatus(TypedDict):
    """The newest turn, which a usage limit has ended that is over, and which nothing continues."""

    suspension_id: str
    message_id: str
    reason: str
    message: str
    has_worked: bool


class BackgroundStatus(TypedDict):
    """How far what is known of background processes holds, and what happens to them."""

    reported_at: str | None
    is_current: bool
    is_complete: bool
    cpu_seconds: float | None
    policy: str
    policy_source: str
    has_own_policy: bool


class StartWaitStatus(TypedDict):
    """Why a session has not started yet, and how many start before it."""

    reason: str
    before: int
    host: str
    """The host that takes no new sessions, if that is the reason."""
    text: str


class IdleStatus(TypedDict):
    """Why nothing is happening, and what happens next."""

    reason: str
    text: str
    next_step: str
    until: str | None


class ResumeCostStatus(TypedDict):
    """What is known of the cost of the next resume, in the fields of ``ResumeCost``."""

    resume_strategy: str
    context_tokens: int | None
    context_size: int | None
    context_reported_at: str | None
    history_characters: int | None
    history_estimated_tokens: int | None
    last_turn_ended_at: str | None
    text: str


class FirstTurnStatus(TypedDict):
    """The first turn after a resume, and what its agent has reported of it."""

    id: str
    message_id: str
    state: str
    ended_at: str | None
    usage: Mapping[str, Any] | None


class ReceiptStatus(TypedDict):
    """A continuity receipt."""

    id: str
    kind: str
    verified: str
    strategy: str
    reason: str
    evidence: Mapping[str, Any]
    created_at: str
    first_turn: FirstTurnStatus | None


class ChoiceStatus(TypedDict):
    """A way to continue."""

    choice: str
    text: str
    mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """The status of one session: its fields, with their types and descriptions in the schema of the API.

    ``StatusSerializer`` has a field of its own for each one whose type is not plain.
    """

    session_id: str
    task_id: str
    state: str
    derived_status: str
    wait: WaitStatus | None
    interrupted_wait: InterruptedWaitStatus | None
    agent_profile_id: str
    agent_type: str
    agent_title: Annotated[
        str, "What the agent is called: the title of its type, or the name that a custom agent gives itself."
    ]
    executor_id: str
    executor_pool: Annotated[str, "The pool that chooses the executor at the first start; empty: a person has chosen."]
    placement_reason: Annotated[str, "Why the pool has chosen the executor; empty: it has not, or not yet."]
    runtime: str
    executor_status: str
    agent_execution_id: str | None
    last_seen_at: str | None
    capability_note: str
    asleep: Annotated[bool, "Stopped because it was idle; a prompt wakes it."]
    output_limit: str
    snapshot_transfer: Mapping[str, Any] | None
    supports_workspace_only: bool
    is_agent_running: bool
    background_processes: Sequence[Mapping[str, Any]]
    background_process_count: int
    background: BackgroundStatus
    is_resumable: bool
    needs_resume: bool
    resume_reason: str
    resume_strategy: str | None
    supports_session_resume: bool
    requires_new_session: Annotated[
        bool, "The opposite of `is_resumable`: continuing needs a new session or a decision by a user."
    ]
    desired_state: str
    work_state: str
    needs_attention: bool
    worktree_id: str
    worktree_path: str
    worktree_branch: str
    workspace: Mapping[str, Any] | None
    warnings: Sequence[Mapping[str, Any]]
    error_code: str
    error_message: str
    last_seq: int
    epoch: str
    policy: str
    policy_source: str
    continues: Annotated[bool, "Whether interrupted work is continued automatically."]
    recovering: bool
    unattended_host: Annotated[
        str,
        "The name of the session's host, if only a supervisor there reaches its agent and none is alive; else empty. "
        "`error_code` is then `unreachable`, and the reason in `stillness` is `host_unattended`.",
    ]
    continuing: bool
    restart_attempts: int
    next_restart_at: str | None
    stalled_since: str | None
    cancel_ignored_since: str | None
    own_wait: OwnWaitStatus | None
    suspension: SuspensionStatus | None
    cut_off_turn: CutOffTurnStatus | None
    budget_hold: BudgetHoldStatus | None
    retry: RetryStatus | None
    history: Mapping[str, int | None] | None
    resume_cost: ResumeCostStatus | None
    latest_receipt: ReceiptStatus | None
    pending_permissions: int
    pending_questions: int
    held_prompts: int
    queued_prompts: int
    overdue_prompts: int
    can_steer: Annotated[bool, "Whether a turn is running into which the agent takes a prompt: `prompts/…/send-now/`."]
    starting: bool
    queued_for_capacity: bool
    start_wait: StartWaitStatus | None
    mcp_servers: Sequence[Mapping[str, Any]]
    stillness: IdleStatus | None = None
    """Derived from the rest, like ``choices``."""
    choices: Sequence[ChoiceStatus] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the status as API and sockets send it."""
        return {name: getattr(self, name) for name in STATUS_FIELDS}


STATUS_FIELDS: Final = tuple(field.name for field in fields(SessionStatus))
"""The names of the fields, in the order in which they are sent."""
