"""Convert execution rows into the facts that runtimes and clients need, and take over executions in bulk."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Q

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutionFacts, LaunchSpec
from sessions_app.models import Lease, TaskSession
from sessions_app.recovery.services.assessment import execution_facts_of
from sessions_app.supervisor import leases

SESSION_RELATED = ("task__repository", "agent_profile", "executor")
"""Relations that carrying out an intent needs, for ``select_related``."""


def load_session(session_id: uuid.UUID) -> TaskSession:
    """Load a session with its task, repository, profile and executor. Raises DoesNotExist."""
    session: TaskSession = TaskSession.objects.select_related(*SESSION_RELATED).get(id=session_id)
    return session


def launch_spec_of(execution: ExecutorRunning, session: TaskSession) -> LaunchSpec:
    """Build what a runtime needs to launch the session's execution, or to find an unfinished launch of it."""
    repository = session.task.repository
    worktree_path, worktree_branch = _worktree_of(execution, session)
    return LaunchSpec(
        execution_id=str(execution.id),
        session_id=str(session.id),
        task_id=str(session.task_id),
        repository_path=repository.path if repository else "",
        base_branch=session.task.base_branch,
        auth_token=execution.auth_token,
        config=session.executor.config,
        worktree_path=worktree_path,
        worktree_branch=worktree_branch,
        worktree_id=str(session.shares_worktree_of_id or ""),
        store_id=repository.store_id if repository else "",
    )


def _worktree_of(execution: ExecutorRunning, session: TaskSession) -> tuple[str, str]:
    """Return path and branch of the worktree; both empty if it was never created.

    A shared worktree may have been created by any session that works in it. Its path must be found: a launch without
    it would create an empty worktree in place of a lost one, and hide the loss.
    """
    if execution.worktree_path or (session.has_agent and session.shares_worktree_of_id is None):
        return execution.worktree_path, execution.worktree_branch
    owner = session.worktree_owner_id
    beside = TaskSession.objects.filter(Q(id=owner) | Q(shares_worktree_of=owner)).exclude(worktree_path="")
    return beside.values_list("worktree_path", "worktree_branch").first() or ("", "")


def address_columns(url: str) -> dict[str, object]:
    """Return the columns that hold agentctl's address; a Unix socket or a malformed URL has no port."""
    try:
        port = urlsplit(url).port
    except ValueError:
        port = None
    return {"agentctl_url": url, "agentctl_port": port}


def load_execution_facts(session_id: uuid.UUID) -> ExecutionFacts | None:
    """Load the facts of a session's present execution; None if it has none."""
    session = load_session(session_id)
    execution = load_execution(session)
    if execution is None:
        return None
    return execution_facts_of(execution, session)


def load_execution(session: TaskSession) -> ExecutorRunning | None:
    """Load the session's present execution with its executor; None if it has none."""
    if session.agent_execution_id is None:
        return None
    return ExecutorRunning.objects.select_related("executor").filter(id=session.agent_execution_id).first()


_RELATED_COLUMNS = {
    "repository_path": "session__task__repository__path",
    "store_id": "session__task__repository__store_id",
    "base_branch": "session__task__base_branch",
    "config": "executor__config",
}
"""Facts of an execution that are columns of related rows."""
_FACTS = [each.name for each in fields(ExecutionFacts)]
_COLUMNS = [_RELATED_COLUMNS.get(name, name) for name in _FACTS]
_CURSOR = ("journal_epoch", "journal_seq", "session__error_code", "supports_workspace_only")


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A session whose execution is to be taken over."""

    session_id: uuid.UUID
    reported: int
    """The generation that its agentctl reports."""
    workspace_only: bool | None = None
    """Whether its agentctl can serve the workspace without an agent; None: it did not report this."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """An execution that this supervisor has leased."""

    facts: ExecutionFacts
    lease: Lease
    epoch: str
    """The epoch of the journal that the log has read up to ``seq``."""
    seq: int
    error_code: str
    """The session's error code."""


def take_over_executions(me: str, wanted: Sequence[TakeoverRequest]) -> list[Takeover | None]:
    """Lease the current execution of each session, in one transaction and a constant number of queries.

    The result is None for a session that another supervisor holds or must manage, and for one without agentctl.
    Raises LeaseLost if others took some of the rows at the same moment, and OperationalError.
    """
    reported = {one.session_id: one.reported for one in wanted}
    with transaction.atomic():
        held = leases.acquire_leases({key: reported[session_id] for key, session_id in _present(reported)}, me)
        rows = ExecutorRunning.objects.filter(id__in=held).values_list("id", "session_id", *_CURSOR, *_COLUMNS)
        probed = {one.session_id: one.workspace_only for one in wanted}
        taken, differs = {}, defaultdict(list)
        for key, session_id, epoch, seq, error_code, known, *values in rows:
            taken[session_id] = Takeover(_facts(values), held[key], epoch, seq, error_code)
            if (told := probed[session_id]) not in (None, known):
                differs[told].append(key)
        for told, ids in differs.items():
            ExecutorRunning.objects.filter(id__in=ids).update(supports_workspace_only=told)
    return [taken.get(one.session_id) for one in wanted]


def _present(sessions: Collection[uuid.UUID]) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Return (execution, session) of each present execution that has an agentctl."""
    rows = ExecutorRunning.objects.filter(session_id__in=sessions, session__agent_execution_id=F("id"))
    return list(rows.exclude(agentctl_url="").values_list("id", "session_id"))


def _facts(values: Sequence[Any]) -> ExecutionFacts:
    """Build the facts like ``ExecutorRunning.facts``; a token that cannot be decrypted counts as empty."""
    known: dict[str, Any] = dict(zip(_FACTS, values, strict=True))
    ids = {name: str(known[name]) for name in ("id", "session_id", "task_id")}
    token = known["auth_token"] if isinstance(known["auth_token"], str) else ""
    of_repository = {name: known[name] or "" for name in ("repository_path", "store_id")}
    beside = {**of_repository, "config": known["config"] or {}}
    return ExecutionFacts(**{**known, **ids, **beside, "auth_token": token})
