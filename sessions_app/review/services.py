"""What a session's branch has changed: read from its workspace through agentctl, or from saved work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executors_app.machine.git.branch_changes import Comparison
from executors_app.repositories import saved_branch
from executors_app.repositories.recovery_refs import SavedWork
from sessions_app.models import TaskSession
from sessions_app.workspace.services.workspace import ask_agentctl, find_saved_work


def list_branch_changes(session: TaskSession, *, kept: bool) -> dict[str, Any]:
    """Return the files that differ from where the branch left its base, and how far both are apart.

    Raises ExecutorError: AgentctlOutdated for an agentctl that cannot list them, NotKept.
    """
    base = session.task.base_branch
    if kept:
        return saved_branch.saved_branch_changes(*_saved(session, base))
    return ask_agentctl(session, lambda client: client.branch_changes(base))


def read_branch_hunks(session: TaskSession, paths: Sequence[str], context: int, *, kept: bool) -> dict[str, Any]:
    """Return the hunks of some of these files; raises what ``list_branch_changes`` raises."""
    base = session.task.base_branch
    if kept:
        return saved_branch.saved_branch_hunks(*_saved(session, base), paths, context)
    return ask_agentctl(session, lambda client: client.branch_hunks(base, paths, context))


def _saved(session: TaskSession, base: str) -> tuple[SavedWork, Comparison]:
    work, repository = find_saved_work(session), session.task.repository
    assert repository is not None, "otherwise nothing is saved"  # noqa: S101
    return work, saved_branch.compare_saved(work, Path(repository.path), base)
