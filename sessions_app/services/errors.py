"""Errors of requests: subclasses of ``SessionsError``, each with a stable code (docs/codes.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from sessions_app.domain.situation_facts import TASK_ENDS
from sessions_app.domain.states import TaskEnd


class SessionsError(Exception):
    """The request cannot be carried out."""

    code: ClassVar[str] = "conflict"

    def __init__(self, message: str = "", **details: Any):
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.details = details

    @property
    def message(self) -> str:
        """The sentence for people."""
        return str(self)


class Conflict(SessionsError):
    """The request does not fit the present state."""


class Invalid(SessionsError):
    """The request is not valid."""

    code = "validation_error"


class NotFound(SessionsError):
    """Not found."""

    code = "not_found"


class ReadOnly(SessionsError):
    """You may read what belongs to this team, not change it."""

    code = "permission_denied"


class Throttled(SessionsError):
    """You asked for this too often. Wait a moment, then try again."""

    code = "throttled"

    def __init__(self, retry_after: int, message: str = ""):
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds."""


class ChecksUnavailable(SessionsError):
    """Workflows cannot be checked at the moment: the machine is too busy. Nothing was changed. Try again."""

    code = "checks_unavailable"


class AlreadyRunning(SessionsError):
    """The session is running already."""

    code = "already_running"


class NotResumable(SessionsError):
    """This agent cannot resume previous sessions. Create a new session."""

    code = "not_resumable"


class NoAgent(SessionsError):
    """This session is a workspace without an agent: it takes no prompts. Prompt another session of its task."""

    code = "no_agent"


class WorktreeNotShared(SessionsError):
    """A session cannot work in this one's worktree."""

    code = "worktree_not_shared"


class MissingResumeToken(SessionsError):
    """The agent never told the key of its conversation, so it cannot be resumed. Create a new session."""

    code = "missing_resume_token"


class TokenMismatch(SessionsError):
    """This conversation belongs to another agent profile, agent type or directory, and is not given to this one."""

    code = "strange_token"


class TerminalState(SessionsError):
    """The session has ended for good."""

    code = "terminal_state"

    @classmethod
    def of_task(cls, end: TaskEnd) -> TerminalState:
        """Return the error for a request to a task that is archived, done or cancelled."""
        return cls(f"{TASK_ENDS[end].text} {TASK_ENDS[end].next_step}")


class WorktreeMissing(SessionsError):
    """The session's worktree is gone. Create a new session."""

    code = "worktree_missing"


class DamagedRow(SessionsError):
    """The rows of this session are damaged, so nothing is done with it. Its status says what is wrong."""

    code = "damaged_row"


class PromptInDoubt(SessionsError):
    """It is not known whether the agent got this prompt: send it again, or dismiss it."""

    code = "prompt_in_doubt"


class PermissionPending(SessionsError):
    """The agent is waiting for your answer. A prompt sent now withdraws its question and cancels its turn."""

    code = "permission_pending"


class IdempotencyKeyReused(SessionsError):
    """Something else was asked with this idempotency key. Take a new key for a new request."""

    code = "idempotency_key_reused"


class ExecutorInUse(SessionsError):
    """Sessions or workflows use this executor."""

    code = "executor_in_use"


class TokenInvalid(SessionsError):
    """This key is not one, or not of what is asked for."""

    code = "token_invalid"


class TokenExpired(SessionsError):
    """The time in which this key could be used is over."""

    code = "token_expired"


class TokenConsumed(SessionsError):
    """This key was used already, and can be used once."""

    code = "token_consumed"


class TokenRevoked(SessionsError):
    """What this key was for is not waited for any more."""

    code = "token_revoked"


ERRORS_BY_CODE: dict[str, type[SessionsError]] = {
    error.code: error
    for error in (
        AlreadyRunning,
        NotResumable,
        NoAgent,
        MissingResumeToken,
        TokenMismatch,
        TerminalState,
        WorktreeMissing,
        PromptInDoubt,
        DamagedRow,
    )
}
"""The errors that an assessment's refusal code leads to."""
