"""Merges and pushes as rows, and an effect that moves no real branch."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth.models import Permission, User

from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import FinishKind, Refusal
from sessions_app.finish.services import request_intent
from sessions_app.models import TaskSession
from tests.supervisor.rows import make_session, make_user

BEFORE: Final = "b" * 40
REVIEWED: Final = "a" * 40
RESULT: Final = "c" * 40


def give_right(session: TaskSession, codename: str = "merge_branches") -> None:
    """Let all members of the session's team merge or push."""
    session.task.team.permissions.add(Permission.objects.get(codename=codename))


def request(session: TaskSession | None = None, by: User | None = None, **values: Any) -> FinishIntent:
    """Write an intent; without a session, one of a new session whose team may merge."""
    if session is None:
        session = make_session()
        give_right(session)
    row = {
        "kind": FinishKind.MERGE,
        "strategy": "squash",
        "branch_ref": f"refs/heads/kandev/{session.id}",
        "branch_commit": REVIEWED,
        "target_ref": "refs/heads/main",
        "expected_commit": BEFORE,
        **values,
    }
    intent = FinishIntent(session=session, by=by or make_user(), **row)
    return request_intent(intent)


class RecordedEffect:
    """A target in memory, which is moved like a branch, and a record of what was asked."""

    def __init__(self) -> None:
        self.target = BEFORE
        self.calls: list[str] = []
        self.unavailable: Exception | None = None
        self.refusal: Refusal | None = None

    def is_done(self, intent: FinishIntent) -> bool:
        """Compare the target with the result."""
        self.calls.append("is_done")
        self._require()
        return self.target == intent.result_commit

    def prepare(self, intent: FinishIntent) -> str:
        """Return the result, unless it is refused."""
        self.calls.append("prepare")
        self._require()
        if self.refusal is not None:
            raise self.refusal
        return RESULT

    def apply(self, intent: FinishIntent) -> None:
        """Move the target from where it was expected."""
        self.calls.append("apply")
        self._require()
        if self.target != intent.expected_commit:
            raise Refusal("target_moved", "The target has moved.")
        self.target = intent.result_commit

    def _require(self) -> None:
        if self.unavailable is not None:
            raise self.unavailable
