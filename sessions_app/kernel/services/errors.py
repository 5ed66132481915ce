"""Errors of requests: subclasses of ``SessionsError``, each with a stable code (docs/codes.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from sessions_app.kernel.rules.states import TaskEnd
from sessions_app.recovery.rules.resumability import Assessment
from sessions_app.sessions.rules.situation_facts import TASK_ENDS
from sessions_app.sessions.rules.situation_texts import REFUSALS


class SessionsError(Exception):
    """The request cannot be carried out."""

    code: ClassVar[str] = "conflict"

    def __init_subclass__(cls, code: str = "", **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.code = code or cls.code

    def __init__(self, message: str = "", **details: Any):
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.details = details

    @property
    def message(self) -> str:
        """The sentence for people."""
        return str(self)


class Conflict(SessionsError):
    """The request conflicts with the current state."""


class Invalid(SessionsError, code="validation_error"):
    """The request is not valid."""


class InvalidAnswer(SessionsError, code="invalid_answer"):
    """The answer does not fit the question. Correct the fields that are marked."""


class NotFound(SessionsError, code="not_found"):
    """Not found."""


class ReadOnly(SessionsError, code="permission_denied"):
    """You have read-only access to this team."""


class Throttled(SessionsError, code="throttled"):
    """Too many requests. Wait a moment, then try again."""

    def __init__(self, retry_after: int, message: str = ""):
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds."""


class ChecksUnavailable(SessionsError, code="checks_unavailable"):
    """Workflows cannot be checked now because the machine is too busy. Nothing was changed. Try again."""


class ExecutorDisabled(SessionsError, code="executor_disabled"):
    """This executor is disabled, so no new session can use it. Choose another one."""


class ProfileDisabled(SessionsError, code="agent_profile_disabled"):
    """This agent profile is disabled, so no new session can use it. Choose another one."""


class SettingsChanged(SessionsError, code="settings_changed"):
    """Someone else has changed these settings meanwhile, so yours were not saved. Compare them, then save again."""


class DisabledByStaff(SessionsError, code="disabled_by_staff"):
    """An administrator has disabled this. Ask one to enable it."""


class DefaultExecutor(SessionsError, code="default_executor"):
    """This is the default executor. Make another one the default first."""


class HostReporting(SessionsError, code="host_reporting"):
    """The host reports that it is there, so it is not lost. Drain it instead."""


class ClusterAnswers(SessionsError, code="cluster_answers"):
    """The cluster answers, so it is not lost. Give up single nodes or Pods there instead."""


class AlreadyRunning(SessionsError, code="already_running"):
    """The session is already running."""


class FinishPending(SessionsError, code="finish_pending"):
    """Another merge or push of this session is being carried out. Wait for its end, then try again."""


class WorkUnfinished(SessionsError, code="unfinished_work"):
    """Not everything of this task is committed and merged, or that is not known. Nothing was changed."""


class NotMergeable(SessionsError, code="not_mergeable"):
    """The branch cannot be merged as it was confirmed. Nothing was changed."""


class NotPushable(SessionsError, code="not_pushable"):
    """The branch cannot be pushed as it was confirmed. Nothing was changed."""


class NotResumable(SessionsError, code="not_resumable"):
    """This agent cannot resume previous sessions. Create a new session."""


class NoAgent(SessionsError, code="no_agent"):
    """This session is a workspace without an agent and does not accept prompts. Use another session of its task."""


class SettingsUnknown(SessionsError, code="settings_unknown"):
    """The agent has not reported any settings. Start it first; some agents have none."""


class UnknownSetting(SessionsError, code="unknown_setting"):
    """The agent does not offer this setting."""


class WorktreeNotShared(SessionsError, code="worktree_not_shared"):
    """A session cannot share this worktree."""


class MissingResumeToken(SessionsError, code="missing_resume_token"):
    """The agent never reported its conversation id, so this conversation cannot be resumed. Start fresh."""


class TokenMismatch(SessionsError, code="strange_token"):
    """This conversation belongs to another agent profile, agent type or directory, and cannot be resumed here."""


class TerminalState(SessionsError, code="terminal_state"):
    """The session has ended and cannot be restarted."""

    @classmethod
    def of_task(cls, end: TaskEnd) -> TerminalState:
        """Return the error for a request to a task that is archived, done or cancelled."""
        return cls(f"{TASK_ENDS[end].text} {TASK_ENDS[end].next_step}")


class WorktreeMissing(SessionsError, code="worktree_missing"):
    """The session’s worktree is gone. Resume the session once its disk is back, or create a new one."""


class DamagedRow(SessionsError, code="damaged_row"):
    """This session’s record is damaged, so Kandev leaves it alone. Its status shows what is wrong."""


class PromptInDoubt(SessionsError, code="prompt_in_doubt"):
    """It is unknown whether the agent received this prompt. Send it again, or dismiss it."""


class PromptNotQueued(SessionsError, code="prompt_not_queued"):
    """This prompt no longer waits in the queue, so it was not changed."""


class QueueFull(SessionsError, code="queue_full"):
    """Too many prompts wait in the queue of this session. Wait until some are sent, or withdraw some."""


class PromptChanged(SessionsError, code="prompt_changed"):
    """Someone else has changed this prompt meanwhile, so your change was not saved."""


class CommentsChanged(SessionsError, code="comments_changed"):
    """The comments have changed meanwhile, so nothing was sent. Read them again, then send them."""


class TooManyComments(SessionsError, code="too_many_comments"):
    """Too many comments wait to be sent in this session. Send them, or delete some."""


class TaskChanged(SessionsError, code="task_changed"):
    """Someone else has changed this task meanwhile, so your change was not saved."""


class NotSteerable(SessionsError, code="not_steerable"):
    """This prompt cannot be handed over now: no turn is running, or this agent takes no texts during one."""


class PermissionPending(SessionsError, code="permission_pending"):
    """The agent is waiting for your answer. Sending a prompt now withdraws its question and cancels its turn."""


class AttachmentUnsupported(SessionsError, code="attachment_unsupported"):
    """This agent does not accept files of this kind in a prompt."""


class AttachmentMissing(SessionsError, code="attachment_missing"):
    """A file of this prompt is no longer stored here. Send a new prompt with the file."""


class AttachmentTooLarge(SessionsError, code="too_large"):
    """The files of this prompt are too large."""


class MediaTypeUnsupported(SessionsError, code="unsupported_media_type"):
    """A prompt cannot carry a file of this type."""


class IdempotencyKeyReused(SessionsError, code="idempotency_key_reused"):
    """This idempotency key was used for a different request. Use a new key for each request."""


class RepositoryInUse(SessionsError, code="repository_in_use"):
    """Workflows use this repository. Choose another one there first."""


class RepositoryChanged(SessionsError, code="repository_changed"):
    """Someone else has changed this repository meanwhile, so your change was not saved."""


class MemberChanged(SessionsError, code="member_changed"):
    """Someone else has changed the role of this member meanwhile, so your change was not saved."""


class LastAdmin(SessionsError, code="last_admin"):
    """This is the team’s only admin. Make another member an admin first."""


class ProfileInUse(SessionsError, code="agent_profile_in_use"):
    """Sessions, workflows or workflow runs use this agent profile. Disable it instead."""


class ExecutorInUse(SessionsError, code="executor_in_use"):
    """Sessions or workflows use this executor."""


class TokenInvalid(SessionsError, code="token_invalid"):
    """This key is invalid, or belongs to something else."""


class TokenExpired(SessionsError, code="token_expired"):
    """This key has expired."""


class TokenConsumed(SessionsError, code="token_consumed"):
    """This key was already used. Each key can be used only once."""


class TokenRevoked(SessionsError, code="token_revoked"):
    """This key was revoked, because nothing is waiting for its answer."""


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


def refusal_error(assessment: Assessment, refusal: str) -> SessionsError:
    """Return the error for a start that the assessment refuses, in the words of the session's banner."""
    error = ERRORS_BY_CODE.get(refusal, Conflict)
    is_about_conversation = error in (NotResumable, MissingResumeToken)
    return error(REFUSALS.get(assessment.cause.resume_reason, "") if is_about_conversation else "")
