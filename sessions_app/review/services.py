"""What a session's branch has changed: read from its workspace through agentctl, or from saved work."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from django.contrib.auth.models import User
from django.db import DatabaseError
from django.db.models import F, OuterRef, Q, Subquery
from django.db.transaction import atomic
from django.utils import timezone

from executors_app.machine.git import branch_changes
from executors_app.machine.git.branch_changes import Comparison
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.repositories import saved_branch
from executors_app.repositories.branch_merge import find_target
from executors_app.repositories.recovery_refs import SavedWork
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlRefused,
    AgentctlUnreachable,
    NotKept,
    RepositoryUnusable,
)
from executors_app.wire.protocol import Code
from sessions_app.models import TaskSession, Turn
from sessions_app.review.rules.parts import WHOLE_BRANCH, Part, PartKind
from sessions_app.review.turn_parts import find_snapshots, list_turns
from sessions_app.workspace.services.workspace import ask_agentctl, author_of_commit, find_saved_work

logger = logging.getLogger(__name__)

_ADDRESS: Final = 48 << 10
"""Characters of paths in the address of a request, which agentctl limits."""
_MAX_COUNT: Final = 2**31 - 1
"""What a column of the database takes."""
_NOTHING: Final = {
    **dict.fromkeys(("base", "branch", "head", "ahead", "behind", "upstream", "operation")),
    **branch_changes.summarize([], truncated=False),
}
"""The answer about a part that cannot be shown; nothing was asked."""


def list_branch_changes(session: TaskSession, part: Part = WHOLE_BRANCH, *, kept: bool) -> dict[str, Any]:
    """Return the changed files of a branch or of a part of it, and of which parts it consists.

    Of the whole branch, these are the files that differ from where it left its base, and how far both are apart.
    Raises ExecutorError: AgentctlOutdated for an agentctl that cannot list them, NotKept; and NotFound.
    """
    asked_at = timezone.now()
    found, problem = _list_changes(session, part, kept=kept)
    if part.kind is PartKind.BRANCH and not kept:
        note_counts(session, found, asked_at)
    about = {"kind": part.kind.value, "id": part.id, "problem": problem}
    # agentctl of an earlier release does not list commits.
    return {"commits": None, "more_commits": False, **found, **list_turns(session), "part": about}


def note_counts(session: TaskSession, found: Mapping[str, Any], asked_at: datetime) -> None:
    """Store how many lines the branch adds and deletes, for cards of the board; None where that is not known.

    The numbers are agentctl's, which an agent may have tampered with. ``asked_at`` is when it was asked. If the
    database takes nothing now, the cards show what was known before, with its time.
    """
    is_whole = bool(found.get("base")) and not found["base"].get("problem") and not found.get("truncated")
    counts = [_count(found.get(name)) if is_whole else None for name in ("additions", "deletions")]
    if None in counts:
        counts = [None, None]
    is_older = Q(branch_counted_at=None) | Q(branch_counted_at__lt=asked_at)
    values = {"branch_additions": counts[0], "branch_deletions": counts[1], "branch_counted_at": asked_at}
    try:
        with atomic():
            TaskSession.objects.filter(is_older, id=session.id).update(**values)
    except DatabaseError as error:
        logger.warning("the changed lines of session %s cannot be stored: %s", session.id, error)


def sessions_to_count(sessions: Collection[uuid.UUID]) -> list[tuple[TaskSession, datetime]]:
    """Return those of ``sessions`` whose last turn has ended since their lines were counted, with its end.

    Each with its task and repository, and without secrets.
    """
    if not sessions:
        return []
    newest = Turn.objects.filter(session=OuterRef("pk")).order_by("-started_at", "-id")
    rows = TaskSession.objects.filter(id__in=sessions, task__archived_at=None)
    rows = rows.annotate(turn_ended_at=Subquery(newest.values("ended_at")[:1]))
    rows = rows.filter(Q(branch_counted_at=None) | Q(branch_counted_at__lte=F("turn_ended_at")))
    found = rows.exclude(turn_ended_at=None).select_related("task__repository").only(*_COUNTED_COLUMNS)
    return [(session, session.turn_ended_at) for session in found.order_by("id")]


_COUNTED_COLUMNS: Final = (
    *("task", "task__base_branch"),
    *("task__repository", "task__repository__path", "task__repository__default_branch"),
)
"""What ``find_base`` needs."""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _MAX_COUNT else None


def read_branch_hunks(
    session: TaskSession, paths: Sequence[str], context: int, part: Part = WHOLE_BRANCH, *, kept: bool
) -> dict[str, Any]:
    """Return the hunks of some of these files; raises what ``list_branch_changes`` raises."""
    base = find_base(session)
    if part.kind is PartKind.BRANCH:
        if kept:
            return saved_branch.saved_branch_hunks(*_saved(session, base), paths, context)
        return ask_agentctl(session, lambda client: client.branch_hunks(base, paths, context))
    between, problem = _between(session, part)
    if problem:
        return {"base": None, "files": [branch_changes.hunks_answer(path, None) for path in paths]}
    if kept:
        owner = str(session.worktree_owner_id)
        return saved_branch.saved_part_hunks(find_saved_work(session), between, owner, paths, context)
    return ask_agentctl(session, lambda client: client.part_hunks(between, paths, context))


def find_base(session: TaskSession) -> str:
    """Return the branch with which a session's branch is compared; empty: where it has started.

    That is what its task names. If it names none, and the repository has none checked out, it is the default branch.
    """
    base, repository = session.task.base_branch, session.task.repository
    if base or repository is None or not repository.default_branch:
        return base
    try:
        team = TeamRepository.open(Path(repository.path))
        if team.head().startswith(BRANCH_PREFIX):
            return ""
        return find_target(team, "", repository.default_branch).removeprefix(BRANCH_PREFIX)
    except (RepositoryUnusable, OSError):
        return ""


def _list_changes(session: TaskSession, part: Part, *, kept: bool) -> tuple[dict[str, Any], str]:
    """Return what a part has changed, and why that is not known."""
    base = find_base(session)
    if part.kind is PartKind.BRANCH:
        if kept:
            return saved_branch.saved_branch_changes(*_saved(session, base)), ""
        return ask_agentctl(session, lambda client: client.branch_changes(base)), ""
    between, problem = _between(session, part)
    if problem:
        return _NOTHING, problem
    if kept:
        found = saved_branch.saved_part_changes(*_saved(session, base), between, str(session.worktree_owner_id))
    else:
        found = ask_agentctl(session, lambda client: client.part_changes(between, base))
    return found, found.pop("part_problem")


def _between(session: TaskSession, part: Part) -> tuple[dict[str, str], str]:
    """Return how agentctl names a part, or why it cannot be shown."""
    if part.kind is PartKind.TURN:
        return find_snapshots(session, part.id)
    return ({"commit": part.id} if part.kind is PartKind.COMMIT else {}), ""


def read_open_or_saved(
    session: TaskSession, first: int, count: int, context: int, part: Part = WHOLE_BRANCH
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the files of a branch, and the hunks of some of them; from saved work if the workspace is not open.

    Raises ExecutorError: if nothing is saved either, why the workspace cannot be read.
    """
    try:
        return _read(session, first, count, context, part, kept=False)
    except (AgentctlUnreachable, AgentctlForeign, AgentctlRefused) as error:
        if isinstance(error, AgentctlRefused) and error.refusal != Code.WORKTREE_MISSING:
            raise
        try:
            return _read(session, first, count, context, part, kept=True)
        except NotKept:
            raise error from None


def show_loss(session: TaskSession, path: str, action: str) -> dict[str, Any]:
    """Return what unstaging or discarding a file would lose, and its version; raises ExecutorError."""
    return ask_agentctl(session, lambda client: client.show_loss(path, action))


def undo_change(session: TaskSession, path: str, action: str, version: str) -> dict[str, Any]:
    """Unstage or discard exactly what ``show_loss`` has shown; raises ExecutorError."""
    return ask_agentctl(session, lambda client: client.undo(path, action, version))


def list_selectable(session: TaskSession) -> dict[str, Any]:
    """Return the uncommitted changes, each with its version; raises ExecutorError."""
    return ask_agentctl(session, lambda client: client.list_selectable())


def commit_selected(
    session: TaskSession, user: User, message: str, files: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Commit exactly these changes, as ``list_selectable`` has shown them, with ``user`` as the author.

    Raises ExecutorError, and then nothing is committed.
    """
    order = {"message": message, "files": list(files), **author_of_commit(user)}
    return ask_agentctl(session, lambda client: client.commit_selected(order))


def _read(
    session: TaskSession, first: int, count: int, context: int, part: Part, *, kept: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = list_branch_changes(session, part, kept=kept)
    paths = _fitting([file["path"] for file in found["files"][first : first + count]])
    if not paths:
        return found, []
    return found, read_branch_hunks(session, paths, context, part, kept=kept)["files"]


def _fitting(paths: Sequence[str]) -> list[str]:
    """Return the first paths that fit into the address of a request."""
    sizes = accumulate(len(quote(path, safe="")) for path in paths)
    return [path for path, size in zip(paths, sizes, strict=True) if size <= _ADDRESS]


def _saved(session: TaskSession, base: str) -> tuple[SavedWork, Comparison]:
    work, repository = find_saved_work(session), session.task.repository
    assert repository is not None, "otherwise nothing is saved"  # noqa: S101
    return work, saved_branch.compare_saved(work, Path(repository.path), base)
