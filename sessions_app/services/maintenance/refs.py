"""Recovery refs: of deleted sessions all, with archive and workspace; of closed ones what the branch has too."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from django.conf import settings

from executors_app import left_files, left_refs
from executors_app.errors import RepositoryUnusable
from sessions_app.models import Leftover, Repository, TaskSession
from sessions_app.services.maintenance import leftovers
from sessions_app.services.maintenance.files import CLOSED, ELSEWHERE, is_only_host
from sessions_app.services.maintenance.work import Work, before_now


def recovery_refs(work: Work) -> None:
    """Remove what may go after ``KANDEV_RECOVERY_RETENTION``."""
    cutoff = before_now(settings.KANDEV_RECOVERY_RETENTION)
    if cutoff is None:
        return
    living = left_files.living()
    for row in leftovers.of_deleted():
        if not work.is_over and not row.refs_gone and row.deleted_at < cutoff and _has_ended(work, row, living):
            _of_deleted(work, row, cutoff)
    for repository, session in _closed(work, cutoff):
        if work.is_over:
            return
        _of_closed(work, repository, session)


def _has_ended(work: Work, row: Leftover, living: frozenset[str]) -> bool:
    """Whether nothing of a deleted session lives on this machine; what does is at work in its workspace."""
    alive = [one for one in row.executions if not left_files.is_idle(one, living)]
    if alive:
        work.kept += 1
        work.note(f"execution {alive[0]} of a deleted session lives", execution_id=alive[0])
    return not alive


def _of_deleted(work: Work, row: Leftover, cutoff: datetime) -> None:
    session_id, repository = str(row.session_id), Path(row.repository_path)
    if left_refs.has_archive(session_id):
        what = f"the archive of deleted session {session_id}"
        work.act(what, partial(left_refs.remove_archive, session_id), session_id=session_id)
    if left_files.has_workspace(session_id):
        what = f"the workspace of deleted session {session_id}"
        work.act(what, partial(left_files.remove_workspace, session_id), session_id=session_id)
    if row.repository_path and not repository.is_dir():
        work.kept += 1
        work.note(f"the repository of deleted session {session_id} is not here", session_id=session_id)
        return
    try:
        refs = left_refs.refs_of(repository, session_id) if row.repository_path else []
    except RepositoryUnusable as error:
        work.fail(f"the refs of deleted session {session_id} cannot be seen: {error.message}", session_id=session_id)
        return
    before = work.failed
    for ref in refs:
        work.act(ref[0], partial(left_refs.drop, repository, session_id, [ref]), session_id=session_id)
    nowhere_else = is_only_host() or row.deleted_at < cutoff - ELSEWHERE
    left = left_refs.has_archive(session_id) or left_files.has_workspace(session_id)
    if not work.dry_run and work.failed == before and nowhere_else and not left:
        leftovers.settle(row, refs_gone=True)


def _closed(work: Work, cutoff: datetime) -> Iterator[tuple[Path, TaskSession]]:
    """Closed sessions of which a repository of this machine keeps a snapshot."""
    # By chance, so that what stays does not use up every run.
    for row in Repository.objects.order_by("?"):
        repository = Path(row.path)
        if not repository.is_dir():
            continue
        try:
            kept = [one for one in map(_id, left_refs.kept_sessions(repository)) if one]
        except RepositoryUnusable as error:
            work.fail(f"the refs of {repository} cannot be seen: {error.message}")
            continue
        closed = TaskSession.objects.filter(state__in=CLOSED, updated_at__lt=cutoff, task__repository=row)
        for start in range(0, len(kept), 500):
            yield from ((repository, one) for one in closed.filter(id__in=kept[start : start + 500]).order_by("?"))


def _of_closed(work: Work, repository: Path, session: TaskSession) -> None:
    session_id = str(session.id)
    try:
        ref = left_refs.adds_nothing(repository, session_id, session.worktree_branch)
    except RepositoryUnusable as error:
        work.fail(f"the snapshot of session {session_id} cannot be compared: {error.message}", session_id=session_id)
        return
    if ref is None:
        work.kept += 1
        return
    work.act(ref[0], partial(left_refs.drop, repository, session_id, [ref]), session_id=session_id)


def _id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
