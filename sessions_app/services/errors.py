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
    """The request conflicts with the current state."""


class Invalid(SessionsError):
    """The request is not valid."""

    code = "validation_error"


class InvalidAnswer(SessionsError):
    """The answer does not fit the question. Correct the fields that are marked."""

    code = "invalid_answer"


class NotFound(SessionsError):
    """Not found."""

    code = "not_found"


class ReadOnly(SessionsError):
    """You have read-only access to this team."""

    code = "permission_denied"


class Throttled(SessionsError):
    """Too many requests. Wait a moment, then try again."""

    code = "throttled"

    def __init__(self, retry_after: int, message: str = ""):
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds."""


class ChecksUnavailable(SessionsError):
    """Workflows cannot be checked now because the machine is too busy. Nothing was changed. Try again."""

    code = "checks_unavailable"


class AlreadyRunning(SessionsError):
    """The session is already running."""

    code = "already_running"


class NotResumable(SessionsError):
    """This agent cannot resume previous sessions. Create a new session."""

    code = "not_resumable"


class NoAgent(SessionsError):
    """This session is a workspace without an agent and takes no prompts. Use another session of its task."""

    code = "no_agent"


class SettingsUnknown(SessionsError):
    """The agent has not reported any settings. Start it first; some agents have none."""

    code = "settings_unknown"


class UnknownSetting(SessionsError):
    """The agent does not offer this setting."""

    code = "unknown_setting"


class WorktreeNotShared(SessionsError):
    """A session cannot share this worktree."""

    code = "worktree_not_shared"


class MissingResumeToken(SessionsError):
    """The agent never reported a conversation id, so the conversation cannot be resumed. Create a new session."""

    code = "missing_resume_token"


class TokenMismatch(SessionsError):
    """This conversation belongs to another agent profile, agent type or directory, and cannot be resumed here."""

    code = "strange_token"


class TerminalState(SessionsError):
    """The session has ended and cannot be restarted."""

    code = "terminal_state"

    @classmethod
    def of_task(cls, end: TaskEnd) -> TerminalState:
        """Return the error for a request to a task that is archived, done or cancelled."""
        return cls(f"{TASK_ENDS[end].text} {TASK_ENDS[end].next_step}")


class WorktreeMissing(SessionsError):
    """The session's worktree is gone. Create a new session."""

    code = "worktree_missing"


class DamagedRow(SessionsError):
    """This session’s record is damaged, so Kandev leaves it alone. Its status shows what is wrong."""

    code = "damaged_row"


class PromptInDoubt(SessionsError):
    """It is unknown whether the agent received this prompt. Send it again, or dismiss it."""

    code = "prompt_in_doubt"


class PermissionPending(SessionsError):
    """The agent is waiting for your answer. Sending a prompt now withdraws its question and cancels its turn."""

    code = "permission_pending"


class AttachmentUnsupported(SessionsError):
    """This agent does not take files of this kind in a prompt."""

    code = "attachment_unsupported"


class AttachmentMissing(SessionsError):
    """A file of this prompt is not stored here any more. Send a new prompt with the file."""

    code = "attachment_missing"


class AttachmentTooLarge(SessionsError):
    """The files of this prompt are too large."""

    code = "too_large"


class MediaTypeUnsupported(SessionsError):
    """A prompt cannot carry a file of this type."""

    code = "unsupported_media_type"


class IdempotencyKeyReused(SessionsError):
    """This idempotency key was used for a different request. Use a new key for each request."""

    code = "idempotency_key_reused"


class ExecutorInUse(SessionsError):
    """Sessions or workflows use this executor."""

    code = "executor_in_use"


class TokenInvalid(SessionsError):
    """This key is invalid, or belongs to something else."""

    code = "token_invalid"


class TokenExpired(SessionsError):
    """This key has expired."""

    code = "token_expired"


class TokenConsumed(SessionsError):
    """This key was already used. Each key can be used only once."""

    code = "token_consumed"


class TokenRevoked(SessionsError):
    """This key was revoked, because nothing waits for its answer any more."""

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
