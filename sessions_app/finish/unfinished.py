"""What a task would leave behind if it were done now: uncommitted changes, and commits that are nowhere else."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app.repositories import branch_merge
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import ExecutorError
from sessions_app.finish.merging import merge_request
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import FinishKind, FinishState, branch_name
from sessions_app.finish.services import Uncommitted, read_uncommitted, session_branch
from sessions_app.models import Task, TaskSession

MAX_SESSIONS: Final = 50
"""Sessions of a task that are looked at, the newest first: each asks its workspace and git."""
SURE_SESSIONS: Final = 5
"""The newest sessions of a task are looked at also when the time is over."""
SECONDS: Final = 10.0
"""After this time, no further session is looked at, and what it leaves is unknown."""
CONFIRMED_SECONDS: Final = 60.0
"""The same while sessions are looked at once more that somebody has seen, which may take longer than before."""
MAX_PATHS: Final = 200
"""Names of uncommitted files of one session that an answer has; all are counted."""
_SESSION_COUNT: Final = re.compile(r"[0-9]{1,3}", re.ASCII)
_LOOKED_AT: Final = 5
"""Merges and pushes of a branch that are looked at, the newest first."""


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """What is left in one session's branch and workspace."""

    session: TaskSession
    branch: str
    target: str
    unmerged: int | None
    """Commits that the base does not have; None if it is not known."""
    tip: str
    """The commit of the branch; empty if it is not known."""
    uncommitted: Uncommitted

    @property
    def paths(self) -> Sequence[str] | None:
        """Names of uncommitted files, at most ``MAX_PATHS``; None if they are not known."""
        return self.uncommitted.paths[:MAX_PATHS] if self.uncommitted.is_known else None

    @property
    def file_count(self) -> int | None:
        """How many files have uncommitted changes; None if it is not known."""
        return len(self.uncommitted.paths) if self.uncommitted.is_known else None

    @property
    def is_something(self) -> bool:
        """Whether anything is left, or may be."""
        return self.unmerged != 0 or not self.uncommitted.is_clean


@dataclass(frozen=True, slots=True)
class UnfinishedTask:
    """What is left in all sessions of a task."""

    works: Sequence[UnfinishedWork]
    """Of the sessions that leave something, or may."""
    unread: int
    """Older sessions that nobody has looked at, because there are too many or others took too long."""
    session_count: int
    """All sessions of the task, also those that leave nothing."""
    looked_at: int = 0
    """Sessions that were looked at, the newest of the task."""

    @property
    def is_something(self) -> bool:
        """Whether anything is left, or may be."""
        return bool(self.works) or self.unread > 0

    @property
    def version(self) -> str:
        """Identifies what is left, so that a confirmation is valid for nothing else.

        It names how many sessions were looked at, so that the same ones are looked at again, however long that takes.
        """
        works = [[str(work.session.id), work.branch, work.tip, work.unmerged, _named(work)] for work in self.works]
        parts = [works, self.unread, self.session_count]
        return f"{self.looked_at}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"


def _named(work: UnfinishedWork) -> list[object]:
    left = work.uncommitted
    return [left.is_known, left.head, str(left.saved_at), *left.paths]


@dataclass(slots=True)
class TimeLimit:
    """How long sessions are looked at; of several tasks, together."""

    seconds: float = SECONDS
    sure_sessions: int = SURE_SESSIONS
    """Looked at also afterwards."""
    most_sessions: int = MAX_SESSIONS
    """Looked at of each task, the newest first."""
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def as_confirmed(cls, version: str) -> TimeLimit:
        """Return the limit within which the sessions are looked at that a version was made of.

        Anything else than a version is as if nothing was seen.
        """
        count = version.partition("-")[0]
        if not _SESSION_COUNT.fullmatch(count):
            return cls()
        return cls(CONFIRMED_SECONDS, most_sessions=min(int(count), MAX_SESSIONS))

    def is_over(self, looked_at: int) -> bool:
        """Whether no further session is looked at."""
        return looked_at >= self.sure_sessions and time.monotonic() - self._began > self.seconds


def unfinished_work(task: Task, limit: TimeLimit | None = None) -> UnfinishedTask:
    """Return what the sessions of a task have that is neither committed nor merged, or of which that is unknown.

    A session that never had a branch has nothing. Not for transactions: it asks workspaces and git.
    """
    limit = limit or TimeLimit()
    own_worktree = task.sessions.filter(shares_worktree_of=None)
    sessions = own_worktree.select_related("task__repository", "executor")[: limit.most_sessions]
    works, looked_at = [], 0
    for session in sessions:
        if limit.is_over(looked_at):
            break
        looked_at += 1
        branch = session_branch(session)
        if branch and (work := _work_of(session, branch)).is_something:
            works.append(work)
    return UnfinishedTask(works, max(own_worktree.count() - looked_at, 0), task.sessions.count(), looked_at)


def _work_of(session: TaskSession, branch: str) -> UnfinishedWork:
    unmerged, target, tip = _count_unmerged(session, branch)
    return UnfinishedWork(session, branch_name(branch), branch_name(target), unmerged, tip, read_uncommitted(session))


def _count_unmerged(session: TaskSession, branch: str) -> tuple[int | None, str, str]:
    """Return how many commits only the branch has (None: not known), the base, and the commit of the branch."""
    repository = session.task.repository
    if repository is None:
        return 0, "", ""
    try:
        team = TeamRepository.open(Path(repository.path))
        target = branch_merge.find_target(team, session.task.base_branch, repository.default_branch)
        tip = team.refs(branch).get(branch)
        if tip is None or not target:
            return None, target, tip or ""
        if _is_finished(session, team, tip):
            return 0, target, tip
        return branch_merge.count_unmerged(team, tip, team.refs(target)[target]), target, tip
    except (ExecutorError, OSError, KeyError):
        return None, "", ""


def _is_finished(session: TaskSession, team: TeamRepository, tip: str) -> bool:
    """Whether this commit was pushed, or merged into what still has it.

    After a squash or rebase, the base has none of its commits.
    """
    done = FinishIntent.objects.filter(session=session, branch_commit=tip, state=FinishState.DONE)
    return any(
        intent.kind == FinishKind.PUSH or branch_merge.is_merged(team, merge_request(intent), intent.result_commit)
        for intent in done.order_by("-created_at")[:_LOOKED_AT]
    )
