"""Execution rows as the facts that runtimes and clients need, and taking leases over in bulk."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Q

from executors_app.domain import ExecutionFacts, LaunchSpec
from executors_app.models import ExecutorRunning
from sessions_app.models import Lease, TaskSession
from sessions_app.supervisor import leases

SESSION_RELATED = ("task__repository", "agent_profile", "executor")
"""What carrying out an order needs beside the session's own row."""


def load_session(session_id: uuid.UUID) -> TaskSession:
    """The session with its task, profile and executor."""
    session: TaskSession = TaskSession.objects.select_related(*SESSION_RELATED).get(id=session_id)
    return session


def execution_facts_of(execution: ExecutorRunning, session: TaskSession) -> ExecutionFacts:
    """The execution as the runtimes and the client need it."""
    repository = session.task.repository
    return execution.facts(repository.path if repository else "", session.task.base_branch)


def launch_spec_of(execution: ExecutorRunning, session: TaskSession) -> LaunchSpec:
    """What the runtime needs to launch the session's execution, or to find it again."""
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
    )


def _worktree_of(execution: ExecutorRunning, session: TaskSession) -> tuple[str, str]:
    """Path and branch, both empty before the first launch; of a shared worktree whoever works in it may have made it.

    To make it anew where it once was would be a silent loss.
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
    """The facts of a session's present execution, read anew."""
    session = load_session(session_id)
    execution = load_execution(session)
    return None if execution is None else execution_facts_of(execution, session)


def load_execution(session: TaskSession) -> ExecutorRunning | None:
    """The session's execution, read anew."""
    if session.agent_execution_id is None:
        return None
    return ExecutorRunning.objects.select_related("executor").filter(id=session.agent_execution_id).first()


_RELATED_COLUMNS = {
    "repository_path": "session__task__repository__path",
    "base_branch": "session__task__base_branch",
    "config": "executor__config",
}
"""What of an execution's facts stands in other rows."""
_FACTS = [each.name for each in fields(ExecutionFacts)]
_COLUMNS = [_RELATED_COLUMNS.get(name, name) for name in _FACTS]
_CURSOR = ("journal_epoch", "journal_seq", "session__error_code", "supports_workspace_only")


@dataclass(frozen=True, slots=True)
class TakeoverRequest:
    """A session whose execution is to be taken over."""

    session_id: uuid.UUID
    reported: int
    """The generation that its agentctl has seen."""
    workspace_only: bool | None = None
    """Whether its agentctl can serve the workspace without an agent; None: it has not told."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """An execution that is ours."""

    facts: ExecutionFacts
    lease: Lease
    epoch: str
    """Of the journal that the log has, up to ``seq``."""
    seq: int
    error_code: str
    """Of the session."""


def take_over_executions(me: str, wanted: Sequence[TakeoverRequest]) -> list[Takeover | None]:
    """Lease the present execution of each session, in one transaction and a constant number of queries.

    None for what another supervisor holds or should, and where there is no agentctl. Raises OperationalError.
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
    """Execution and session of each that has an agentctl."""
    rows = ExecutorRunning.objects.filter(session_id__in=sessions, session__agent_execution_id=F("id"))
    return list(rows.exclude(agentctl_url="").values_list("id", "session_id"))


def _facts(values: Sequence[Any]) -> ExecutionFacts:
    """As ``ExecutorRunning.facts``; a token that cannot be decrypted is none."""
    known: dict[str, Any] = dict(zip(_FACTS, values, strict=True))
    ids = {name: str(known[name]) for name in ("id", "session_id", "task_id")}
    token = known["auth_token"] if isinstance(known["auth_token"], str) else ""
    beside = {"repository_path": known["repository_path"] or "", "config": known["config"] or {}}
    return ExecutionFacts(**{**known, **ids, **beside, "auth_token": token})
