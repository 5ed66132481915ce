"""Delete finished tests of agents, so that a test leaves nothing behind but what it has shown.

First the rows, in transactions of their own; then the files, by the ids of what was deleted. What a crash or a machine
leaves in between is found again: rows by the next pass, files by their leftovers or because nothing names them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from executors_app import cleanup
from executors_app.wire.errors import ExecutorError
from sessions_app.agents.services import agent_login, agent_setup
from sessions_app.board.services.tasks import delete_session
from sessions_app.catalogue.services.repositories import SCRATCH_DIRECTORY, scratch_root
from sessions_app.kernel.rules.states import DesiredState, RunState
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.maintenance.files import is_only_host, settle_leftover
from sessions_app.models import AgentTestResult, Leftover, Prompt, Repository, Task, TaskSession
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.turns.models import newest_run

log = logging.getLogger(__name__)

SHOWN_FOR: Final = timedelta(minutes=1)
"""How long a finished test stays, for people who are about to open its session; longer while somebody has it open."""
AT_ONCE: Final = 20
_UNUSED_FOR: Final = timedelta(minutes=1)
"""How old a scratch repository without a task must be: a test that is being started has none yet."""


@dataclass(frozen=True, slots=True)
class DeletedTests:
    """What was deleted, by the ids that name its files."""

    executions_by_session: dict[str, Sequence[str]] = field(default_factory=dict)
    unused_directories: Sequence[Path] = ()

    def __bool__(self) -> bool:
        return bool(self.executions_by_session or self.unused_directories)


def delete_finished_tests() -> DeletedTests:
    """Store what finished tests have shown, and delete their rows; return what names their files."""
    if not Repository.objects.filter(path__startswith=f"{scratch_root()}/").exists():
        return DeletedTests(unused_directories=_unused_directories())
    deleted: dict[str, Sequence[str]] = {}
    for session in _find_tests():
        session_id = str(session.id)
        executions = [str(key) for key in session.executions.values_list("id", flat=True)]
        try:
            is_deleted = _delete_test(session)
        except SessionsError as error:
            log.info("test %s is not deleted yet: %s", session_id, error.message)
            continue
        if is_deleted:
            deleted[session_id] = executions
    _delete_empty_tasks()
    return DeletedTests(deleted, _unused_directories())


def _find_tests() -> list[TaskSession]:
    rows = _finished_tests().select_related("task__team", "task__repository", "agent_profile", "executor")
    # In random order: tests that cannot be deleted would otherwise keep all others.
    return list(rows.defer(*SECRET_FIELDS).order_by("?")[:AT_ONCE])


def _finished_tests() -> QuerySet[TaskSession]:
    """Return the tests that are over, that nobody looks at, and that nobody has used as an ordinary session."""
    now = timezone.now()
    prompts = Prompt.objects.filter(session=OuterRef("pk"))
    rows = agent_setup.test_sessions().filter(desired_state=DesiredState.STOPPED, updated_at__lt=now - SHOWN_FOR)
    rows = rows.exclude(presences__expires_at__gt=now).exclude(executions__status__in=("starting", "ready", "error"))
    rows = rows.filter(task__title=agent_setup.TEST_TASK, shares_worktree_of=None, sharing=None)
    # Of a test, that is its only prompt. Sessions that people begin there themselves have others, or none.
    rows = rows.filter(
        Exists(prompts.filter(text=agent_setup.TEST_PROMPT)), ~Exists(prompts.exclude(text=agent_setup.TEST_PROMPT))
    )
    return rows.filter(review_comments=None).exclude(user_marks__pinned_at__isnull=False)


def _delete_test(session: TaskSession) -> bool:
    """Store what a test has shown, and delete it; return False if somebody uses it after all. Raises SessionsError."""
    with transaction.atomic():
        locked = TaskSession.objects.select_for_update().filter(id=session.id).values_list("id", flat=True)
        if not locked or not _finished_tests().filter(id=session.id).exists():
            return False
        _store_result(session)
        delete_session(session)
    return True


def _store_result(session: TaskSession) -> None:
    """Keep what the test has shown, unless a newer one was stored."""
    key: dict[str, Any] = {
        "team_id": session.task.team_id,
        "executor_id": session.executor_id,
        "profile_id": session.agent_profile_id,
    }
    known = AgentTestResult.objects.filter(**key).first()
    if known is not None and known.started_at > session.created_at:
        return
    result, published = agent_setup.test_result(session), agent_login.published_logins(session)
    run = newest_run(session)
    worked_at = known.worked_at if known is not None else None
    if run is not None and run.state == RunState.COMPLETED and run.ended_at is not None:
        worked_at = run.ended_at
    AgentTestResult.objects.update_or_create(
        **key,
        defaults={
            "agent_type": session.agent_profile.agent_type,
            "started_at": session.created_at,
            "state": result.state,
            "reply": result.reply,
            "seconds": result.seconds,
            "error": result.error,
            "error_code": session.error_code if result.state == "failed" else "",
            "exit": result.exit,
            "worked_at": worked_at,
            "login": agent_login.login_state(session) or {},
            "auth_methods": list(published.methods),
            "logs_out": published.logs_out,
            "auth_at": published.at,
        },
    )


def _delete_empty_tasks() -> None:
    """Delete the tasks and scratch repositories that no test needs any more."""
    of_tests = {"repository__path__startswith": f"{scratch_root()}/", "title": agent_setup.TEST_TASK}
    old = timezone.now() - _UNUSED_FOR
    for task_id in Task.objects.filter(**of_tests, sessions=None, updated_at__lt=old).values_list("id", flat=True):
        with _unless_used(), transaction.atomic():
            # Whoever starts a test locks its repository first, and then chooses its task.
            list(Repository.objects.select_for_update().filter(tasks=task_id))
            task = Task.objects.select_for_update().filter(id=task_id).first()
            if task is not None and not task.sessions.exists():
                task.delete()
    unused = Repository.objects.filter(path__startswith=f"{scratch_root()}/", tasks=None, created_at__lt=old)
    for repository_id in unused.values_list("id", flat=True):
        with _unless_used(), transaction.atomic():
            row = Repository.objects.select_for_update().filter(id=repository_id).first()
            if row is not None and not row.tasks.exists():
                row.delete()


@contextmanager
def _unless_used() -> Iterator[None]:
    """Let a row stay that others need, such as a workflow that uses it; the database refuses its deletion."""
    with suppress(IntegrityError):
        yield


def _unused_directories() -> Sequence[Path]:
    """Return the directories of scratch repositories that no row names; a row is there before its directory.

    Rows name them by their ids: the data directory may have been moved since a row was written.
    """
    root = scratch_root()
    if not root.is_dir():
        return ()
    here = [path for path in root.iterdir() if _is_id(path.name) and path.is_dir() and not path.is_symlink()]
    if not here:
        return ()
    rows = Repository.objects.filter(path__contains=f"/{SCRATCH_DIRECTORY}/")
    named = {Path(path).name for path in rows.values_list("path", flat=True)}
    return [path for path in here if path.name not in named]


def _is_id(name: str) -> bool:
    try:
        return str(uuid.UUID(name)) == name
    except ValueError:
        return False


def remove_files(deleted: DeletedTests) -> list[str]:
    """Remove the files of deleted tests on this machine; return the sessions of which nothing is left here."""
    living = cleanup.find_living_executions() if deleted.executions_by_session else frozenset()
    gone = [key for key, executions in deleted.executions_by_session.items() if _remove_files(key, executions, living)]
    for directory in deleted.unused_directories:
        try:
            cleanup.remove_directory(directory)
        except OSError:
            log.exception("the scratch repository %s remains", directory.name)
    return gone


def _remove_files(session_id: str, executions: Collection[str], living: frozenset[str]) -> bool:
    if not all(cleanup.is_idle(one, living) for one in executions):
        return False
    try:
        for one in executions:
            cleanup.remove_state(one)
        cleanup.remove_worktree(session_id)
        cleanup.remove_home(session_id)
        cleanup.remove_workspace(session_id)
        cleanup.remove_archive(session_id)
    except (OSError, ExecutorError):
        log.exception("files of test %s remain; the maintenance removes them", session_id)
        return False
    return True


def forget_leftovers(sessions: Collection[str]) -> None:
    """Forget that these sessions have left files behind, where no other machine can have any."""
    if not is_only_host():
        return
    for row in Leftover.objects.filter(session_id__in=list(sessions)):
        settle_leftover(row, files_gone=True, refs_gone=True)
