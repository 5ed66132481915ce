"""Remove worktrees of closed sessions from this machine, if that is switched on and nothing is lost with them.

A worktree is moved into the trash first, from where it returns as it was: when its session is started again, or with
``manage.py removed_worktrees``. After its time there, the same checks are made again before its files are deleted.
Branches and snapshots are never touched; a session that is started later gets its worktree made again from those.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.transaction import atomic
from django.utils import timezone

from executors_app import cleanup
from executors_app.machine.git import worktree_trash, worktrees
from executors_app.machine.process import execution_processes, identity, path_users
from executors_app.machine.process.path_users import ProcessesUnknown
from executors_app.models import ExecutorRunning
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.unsaved_work import RemovableWorktree, Unsaved, check_worktree
from executors_app.repositories.workspace_store import execution_storage
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.hosts.heartbeats import host_name
from sessions_app.maintenance.chore_run import ChoreRun, cutoff_before
from sessions_app.maintenance.closed_sessions import lock_if_closed
from sessions_app.maintenance.files import leftover_of
from sessions_app.models import RemovedWorktree, TaskSession

DELETE_SECONDS: Final = 10.0
"""Maximum time of one run to delete files."""
_LOCK_SECONDS: Final = 2.0
"""How long a run waits for whoever prepares a worktree that is in the trash; the next run tries again."""


@dataclass(frozen=True, slots=True)
class WorktreeOwner:
    """The sessions that use a worktree, or used it before they were deleted."""

    sessions: Sequence[uuid.UUID]
    """Ids of the sessions, in the order in which they are locked; empty: the only one was deleted."""
    executions: Sequence[str]
    states: Sequence[dict[str, object]]
    """What each execution recorded about its process."""
    repository: Path
    branch: str


def clean_worktrees(work: ChoreRun) -> None:
    """Move worktrees into the trash after ``KANDEV_WORKTREE_RETENTION``, and delete those whose time there is over."""
    cutoff = cutoff_before(settings.KANDEV_WORKTREE_RETENTION)
    if cutoff is None:
        return
    if not work.dry_run:
        _note_outcomes()
        _return_unknown(work)
    # The processes are read once: what enters a worktree later does so before a rename that can be undone.
    used = _find_used_paths(work)
    if used is None:
        return
    living = cleanup.find_living_executions()
    for path in cleanup.list_worktrees():
        if work.is_over:
            break
        _clean_worktree(work, path, cutoff, living, used)
    if not work.dry_run:
        _empty_trash(work, used)


def _find_used_paths(work: ChoreRun) -> frozenset[str] | None:
    root = execution_storage().root
    folders = (root / "worktrees", root / "trash")
    try:
        if root.stat().st_mode & 0o077:
            raise ProcessesUnknown(f"{root} is open to other users")
        return path_users.find_used_paths(folders)
    except (ProcessesUnknown, OSError) as error:
        work.note(f"all worktrees stay, because it is not known which of them processes use: {error}")
        return None


def _clean_worktree(work: ChoreRun, path: Path, cutoff: datetime, living: frozenset[str], used: frozenset[str]) -> None:
    session_id = uuid.UUID(path.name)
    name = f"worktree {path.name}"
    owner = _find_owner(session_id, cutoff)
    if owner is None:
        return  # it is used, or was closed lately
    try:
        _require_no_process(path, owner, living, used)
        found = _check(path, path, owner)
    except Unsaved as reason:
        work.keep(name, str(reason), session_id=path.name)
    except (RepositoryUnusable, OSError) as error:
        work.keep(name, f"it could not be compared with its repository: {error}", session_id=path.name)
    else:
        work.act(name, lambda: _move(path, owner, found, cutoff), session_id=path.name)


def _find_owner(session_id: uuid.UUID, cutoff: datetime) -> WorktreeOwner | None:
    """Return whose worktree it is if all its sessions may be closed, or were deleted long enough ago; else None."""
    sessions = list(_users_of(session_id).select_related("task__repository"))
    if not sessions:
        return _deleted_owner(session_id, cutoff)
    with atomic():
        if not all(lock_if_closed(session.id, cutoff) for session in sessions):
            return None
    own = next((session for session in sessions if session.id == session_id), None)
    if own is None or own.task.repository is None:
        return None
    executions = ExecutorRunning.objects.filter(session__in=sessions).only("id", "state")
    states = {str(row.id): dict(row.state) for row in executions}
    branch = own.worktree_branch or _default_branch(session_id)
    ids = [session.id for session in sessions]
    return WorktreeOwner(ids, list(states), list(states.values()), Path(own.task.repository.path), branch)


def _users_of(session_id: uuid.UUID) -> QuerySet[TaskSession]:
    return TaskSession.objects.filter(Q(id=session_id) | Q(shares_worktree_of=session_id)).order_by("id")


def _deleted_owner(session_id: uuid.UUID, cutoff: datetime) -> WorktreeOwner | None:
    row = leftover_of(session_id)
    if row is None or row.deleted_at >= cutoff or not row.repository_path:
        return None
    # A session that was imported without the one whose worktree it shared.
    path = execution_storage().worktree_of(str(session_id), "", "").path
    if ExecutorRunning.objects.filter(worktree_path=str(path)).exists():
        return None
    return WorktreeOwner([], list(row.executions), [], Path(row.repository_path), _default_branch(session_id))


def _default_branch(session_id: uuid.UUID) -> str:
    return worktrees.session_worktree(execution_storage().root, str(session_id)).branch


def _require_no_process(path: Path, owner: WorktreeOwner, living: frozenset[str], used: frozenset[str]) -> None:
    """Raise Unsaved unless it is proven that no process works in the worktree."""
    if not path_users.sees_whole_machine() and not _ran_where_we_are(owner):
        raise Unsaved("not every process of its machine can be seen from here")
    if not all(cleanup.is_idle(execution_id, living) for execution_id in owner.executions):
        raise Unsaved("a process of its session still runs")
    _require_unused(path, used)


def _require_unused(path: Path, used: frozenset[str]) -> None:
    inside = str(path.resolve())
    if any(place == inside or place.startswith(f"{inside}/") for place in used):
        raise Unsaved("a process is in it, or has a file of it open")


def _ran_where_we_are(owner: WorktreeOwner) -> bool:
    """Whether every execution ran in the pid namespace that we see."""
    here = identity.identify_self().pid_namespace
    recorded = [execution_processes.recorded_process(state) for state in owner.states]
    return bool(recorded) and all(process is not None and process.pid_namespace == here for process in recorded)


def _check(path: Path, place: Path, owner: WorktreeOwner) -> RemovableWorktree:
    team = TeamRepository.open(owner.repository)
    return check_worktree(team, path, place, owner.branch, settings.KANDEV_WORKTREE_CACHES)


def _move(path: Path, owner: WorktreeOwner, found: RemovableWorktree, cutoff: datetime) -> bool:
    """Move a worktree into the trash; return False if one of its sessions is no longer closed."""
    # In one transaction with locked sessions, so that none of them is started meanwhile.
    with atomic():
        if not all(lock_if_closed(session_id, cutoff) for session_id in owner.sessions):
            return False
        if [row.id for row in _users_of(uuid.UUID(path.name))] != list(owner.sessions):
            return False
        RemovedWorktree.objects.create(
            session_id=path.name,
            host=host_name(),
            path=str(path),
            repository_path=str(owner.repository),
            branch=owner.branch,
            head=found.head,
        )
        worktree_trash.move_to_trash(path, found.record)
    return True


def in_trash() -> QuerySet[RemovedWorktree]:
    """Return what is in the trash of this host."""
    return RemovedWorktree.objects.filter(host=host_name(), removed_at=None, brought_back_at=None)


def _note_outcomes() -> None:
    """Record which worktrees are no longer in the trash: their session was started again, or a run was killed."""
    for row in in_trash():
        path = Path(row.path)
        if worktree_trash.trash_of(path).exists():
            continue
        outcome = "removed_at"
        if path.is_dir():
            outcome = "brought_back_at"
        RemovedWorktree.objects.filter(id=row.id).update(**{outcome: timezone.now()})


def _return_unknown(work: ChoreRun) -> None:
    """Move worktrees back of which no row says that they are in the trash: the run that moved them was killed."""
    known = set(in_trash().values_list("path", flat=True))
    for path in cleanup.list_trash():
        if str(path) in known:
            continue
        try:
            with worktrees.worktree_lock(path, _LOCK_SECONDS):
                returned = worktree_trash.bring_back(path)
        except (RepositoryUnusable, OSError) as error:
            work.keep(f"worktree {path.name} in the trash", str(error), session_id=path.name)
            continue
        if returned:
            work.note(f"moved worktree {path.name} back from the trash, because its removal was interrupted")
        elif worktree_trash.is_in_trash(path):
            reason = f"its removal was interrupted, and {path} is something else now. Move that elsewhere"
            work.keep(f"worktree {path.name} in the trash", reason, session_id=path.name)


def _empty_trash(work: ChoreRun, used: frozenset[str]) -> None:
    cutoff = cutoff_before(settings.KANDEV_WORKTREE_TRASH)
    if cutoff is not None:
        for row in in_trash().filter(moved_at__lt=cutoff).order_by("?"):
            if work.is_over:
                break
            _delete(work, row, used)
    for left in cleanup.finish_trash(DELETE_SECONDS):
        work.note(f"the files in {left} are not all deleted yet; the next run goes on")


def _delete(work: ChoreRun, row: RemovedWorktree, used: frozenset[str]) -> None:
    path = Path(row.path)
    trash, name = worktree_trash.trash_of(path), f"worktree {path.name} in the trash"
    owner = WorktreeOwner([], [], [], Path(row.repository_path), row.branch)
    try:
        _require_unused(trash, used)
        with worktrees.worktree_lock(path, _LOCK_SECONDS):
            if worktree_trash.is_place_taken(path):
                raise Unsaved(f"something else is at {path}, where it was, and may use git's record of it")
            found = _check(trash, path, owner)
            # Looked at once more, because this is the step that cannot be undone.
            _require_unused(trash, path_users.find_used_paths((trash.parent,)))
            cleanup.take_out_of_trash(path, found.record)
    except (Unsaved, ProcessesUnknown, RepositoryUnusable, OSError) as error:
        RemovedWorktree.objects.filter(id=row.id).update(kept_because=str(error)[:1000])
        work.keep(name, str(error), session_id=path.name)
        return
    RemovedWorktree.objects.filter(id=row.id).update(removed_at=timezone.now(), kept_because="")
    work.note(f"deleted {name}", session_id=path.name)


def bring_back(row: RemovedWorktree) -> bool:
    """Move a worktree from the trash of this host back to its place; return False if that is not possible."""
    path = Path(row.path)
    with worktrees.worktree_lock(path):
        returned = worktree_trash.bring_back(path)
    if returned:
        RemovedWorktree.objects.filter(id=row.id).update(brought_back_at=timezone.now())
    return returned
