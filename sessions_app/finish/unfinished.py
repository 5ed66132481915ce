"""What a task would leave behind if it were done now: uncommitted changes, and commits that are nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
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

MAX_SESSIONS: Final = 5
"""Sessions of a task that are looked at, the newest first: each asks its workspace and git."""
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
    uncommitted: Uncommitted

    @property
    def is_something(self) -> bool:
        """Whether anything is left, or may be."""
        return self.unmerged != 0 or not self.uncommitted.is_clean


def unfinished_work(task: Task) -> list[UnfinishedWork]:
    """Return what the newest sessions of a task have that is neither committed nor merged, or of which that is unknown.

    A session that never had a branch has nothing.
    """
    sessions = task.sessions.filter(shares_worktree_of=None).select_related("task__repository", "executor")
    found = [_work_of(session, branch) for session in sessions[:MAX_SESSIONS] if (branch := session_branch(session))]
    return [work for work in found if work.is_something]


def _work_of(session: TaskSession, branch: str) -> UnfinishedWork:
    unmerged, target = _count_unmerged(session, branch)
    return UnfinishedWork(session, branch_name(branch), branch_name(target), unmerged, read_uncommitted(session))


def _count_unmerged(session: TaskSession, branch: str) -> tuple[int | None, str]:
    """Return how many commits only the branch has (None: not known), and the base."""
    repository = session.task.repository
    if repository is None:
        return 0, ""
    try:
        team = TeamRepository.open(Path(repository.path))
        target = branch_merge.find_target(team, session.task.base_branch)
        tip = team.refs(branch).get(branch)
        if tip is None or not target:
            return None, target
        if _is_finished(session, team, tip):
            return 0, target
        return branch_merge.count_unmerged(team, tip, team.refs(target)[target]), target
    except (ExecutorError, OSError, KeyError):
        return None, ""


def _is_finished(session: TaskSession, team: TeamRepository, tip: str) -> bool:
    """Whether this commit was pushed, or merged into what still has it.

    After a squash or rebase, the base has none of its commits.
    """
    done = FinishIntent.objects.filter(session=session, branch_commit=tip, state=FinishState.DONE)
    return any(
        intent.kind == FinishKind.PUSH or branch_merge.is_merged(team, merge_request(intent), intent.result_commit)
        for intent in done.order_by("-created_at")[:_LOOKED_AT]
    )
