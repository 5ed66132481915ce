"""Errors of executors: one base class, a stable code, and whether trying again can help."""

from __future__ import annotations

from typing import Any, ClassVar


class ExecutorError(Exception):
    """Something went wrong on the executor."""

    code: ClassVar[str] = "executor_error"
    permanent: bool = False
    """Whether the same call can never succeed unless something else changes first."""

    def __init__(self, message: str = "", **details: Any):
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        self.details = details

    @property
    def message(self) -> str:
        """The sentence for users."""
        return str(self)

    @property
    def message_for_staff(self) -> str:
        """The sentence, followed by what only staff may read: addresses, and a program's own output."""
        for_staff = str(self.details.get("for_staff", ""))
        if for_staff not in self.message:
            return f"{self.message} {for_staff}".strip()
        return self.message


class AgentctlUnreachable(ExecutorError):
    """The session's agentctl does not answer."""

    code = "agentctl_unreachable"


class AgentctlForeign(ExecutorError):
    """Something other than this session's agentctl answered."""

    code = "agentctl_foreign"


class AgentctlRefused(ExecutorError):
    """The session's agentctl refused the call."""

    code = "agentctl_refused"

    def __init__(self, message: str = "", *, status: int, refusal: str, **details: Any):
        super().__init__(message, **details)
        self.status = status
        """HTTP status."""
        self.refusal = refusal
        """``code`` of agentctl's own answer (``protocol.Code``)."""


class AgentctlOutdated(ExecutorError):
    """The session's agentctl is of an older release and does not know this request."""

    code = "agentctl_outdated"


class StaleGeneration(AgentctlRefused):
    """Another supervisor has taken over this execution."""

    code = "stale_generation"


class RuntimeUnavailable(ExecutorError):
    """This session's executor is not available now."""

    code = "runtime_unavailable"


class LaunchFailed(ExecutorError):
    """The session's agentctl could not be started."""

    code = "launch_failed"


class WorkspaceGone(ExecutorError):
    """The session's worktree is gone and cannot be rebuilt."""

    code = "worktree_missing"
    permanent = True


class RepositoryUnusable(ExecutorError):
    """The repository cannot be used."""

    code = "repository_unusable"
    permanent = True


def no_start_commit(repository: Any, base: str) -> RepositoryUnusable:
    """Return the error for a session that has nothing to start from: an empty repository, or an unknown base."""
    if base:
        what_next = "Create a branch of that name, then try again; or create a task with another base branch."
    else:
        what_next = "Make a first commit there, then try again."
    return RepositoryUnusable(
        f"The repository {repository} has no commit at {base or 'HEAD'!r} to start from. {what_next}"
    )


class PublicationRefused(RepositoryUnusable):
    """A workspace has published as much into the team's repository as it may; its work is kept in its archive."""

    code = "publication_refused"


class BundleRefused(ExecutorError):
    """The workspace's bundle was rejected; nothing was changed."""

    code = "bundle_refused"
    permanent = True


class NotKept(ExecutorError):
    """No work of this workspace is saved in its repository."""

    code = "not_kept"
    permanent = True


class SnapshotMissing(ExecutorError):
    """The workspace no longer contains its newest snapshot."""

    code = "snapshot_missing"
    permanent = True
