"""The derived status of many sessions at once, for lists: a constant number of queries (rule 29)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from django.db.models import OuterRef, Subquery
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.domain.states import RunState
from sessions_app.domain.status import DerivedStatus, RunFacts, project
from sessions_app.domain.tokens import TokenState, WaitKind, best
from sessions_app.models import PermissionRequest, ResumeToken, Run, TaskSession
from sessions_app.models.derived import is_gone


def derived_of(sessions: Sequence[TaskSession]) -> Mapping[uuid.UUID, DerivedStatus]:
    """The derived status by session id; as ``models.derived`` says of one."""
    runs = _newest_runs([session.id for session in sessions])
    tokens = _best_tokens([run for run in runs.values() if run.state == RunState.WAITING])
    executions = ExecutorRunning.objects.only("id", "status", "session_id").in_bulk(
        [session.agent_execution_id for session in sessions if session.agent_execution_id]
    )
    return {
        session.id: _project(
            session, runs.get(session.id), executions.get(cast(Any, session.agent_execution_id)), tokens
        )
        for session in sessions
    }


def _newest_runs(ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Run]:
    mine = Run.objects.filter(session=OuterRef("session")).order_by("-started_at", "-id")
    found = Run.objects.filter(session__in=ids, id=Subquery(mine.values("id")[:1]))
    return {run.session_id: run for run in found}


def _best_tokens(runs: Sequence[Run]) -> Mapping[uuid.UUID, TokenState | None]:
    """Of the keys of whatever each run still waits for."""
    if not runs:
        return {}
    now, states = timezone.now(), defaultdict(list)
    waits = {run.id: run.wait_id for run in runs}
    asked = set(PermissionRequest.objects.filter(run__in=runs, state="pending").values_list("run_id", "id"))
    for key in ResumeToken.objects.filter(run__in=runs):
        run_id = cast(uuid.UUID, key.run_id)
        is_waited = key.wait_kind != WaitKind.PERMISSION and key.wait_id == waits[run_id]
        if is_waited or (run_id, key.wait_id) in asked:
            states[run_id].append(key.state(now))
    return {run.id: best(states[run.id]) for run in runs}


def _project(
    session: TaskSession,
    run: Run | None,
    execution: ExecutorRunning | None,
    tokens: Mapping[uuid.UUID, TokenState | None],
) -> DerivedStatus:
    if run is None:
        return project(None)
    return project(
        RunFacts(
            state=cast(RunState, run.state),
            waited=run.waited,
            process_gone=run.has_process and is_gone(session, execution),
            token=tokens.get(run.id) if run.state == RunState.WAITING else TokenState.ACTIVE,
        )
    )
