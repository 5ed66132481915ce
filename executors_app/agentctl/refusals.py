"""What agentctl answers instead of doing it: one error with a code, a sentence and an HTTP status."""

from __future__ import annotations

from typing import Any, Final

from executors_app.agentctl.protocol import Code

_STATUS: Final[dict[str, int]] = {
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
    Code.CONFLICT: 409,
    Code.GIT_FAILED: 409,
    Code.WORKTREE_MISSING: 409,
    Code.TOO_LARGE: 413,
    Code.INTERNAL_ERROR: 500,
    Code.JOURNAL_FULL: 503,
}
_AGENTS_FAULT: Final = 502


class Refused(Exception):
    """A request that is not carried out; ``details`` are plain JSON."""

    def __init__(self, code: str, message: str, **details: Any):
        super().__init__(message)
        self.code, self.message, self.details = code, message, details

    @property
    def status(self) -> int:
        """The HTTP status; every code of a failed start is the agent's fault."""
        return _STATUS.get(self.code, _AGENTS_FAULT)


def invalid(message: str, **details: Any) -> Refused:
    """A request that could never be right."""
    return Refused(Code.VALIDATION_ERROR, message, **details)
