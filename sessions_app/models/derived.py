"""The derived status of a session from its rows, and its line in the log when it has changed (rule 29)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django.db.models import Q
from django.utils import timezone

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from executors_app.prepared import Prepared
from sessions_app.domain.states import RunState
from sessions_app.domain.status import DerivedStatus, RunFacts, project
from sessions_app.domain.tokens import TokenState, WaitKind, best
from sessions_app.models.resume_token import ResumeToken
from sessions_app.models.run import PermissionRequest, Run
from sessions_app.models.session import TaskSession

if TYPE_CHECKING:
    from sessions_app.models.draft import Draft

_CHANGED_BY = ("session.run.", "session.token.", "session.agentctl_")
"""Beginnings of events with which the derived status may change."""
_NEWEST_RUN = Prepared(lambda key: Run.objects.filter(session_id=key).order_by("-started_at", "-id")[:1])


def newest_run(session: TaskSession) -> Run | None:
    """The run that says how the session is; an open one is the newest whatever the clocks say."""
    return of_session(session, _NEWEST_RUN.first(session.id))


def of_session(session: TaskSession, run: Run | None) -> Run | None:
    """A run that was read by its session's id: it carries the session from now on."""
    if run is not None:
        run.session = session
    return run


def derived_status(session: TaskSession, execution: ExecutorRunning | None, run: Run | None) -> DerivedStatus:
    """What follows from the newest run; one query, and only where it waits."""
    if run is None:
        return project(None)
    waits = run.state == RunState.WAITING
    return project(
        RunFacts(
            state=cast(RunState, run.state),  # one that is none, by damage, is as good as an end
            waited=run.waited,
            process_gone=run.has_process and is_gone(session, execution),
            token=_best_token(run) if waits else TokenState.ACTIVE,
        )
    )


def is_gone(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """No agent of this session is up; one that only does not answer may be."""
    return not session.launch_id or execution is None or execution.status == ExecutorStatus.STOPPED


def _best_token(run: Run) -> TokenState | None:
    """Of the keys of whatever the run still waits for."""
    asked = PermissionRequest.objects.filter(run=run, state="pending").values("id")
    waited = Q(wait_id=run.wait_id) & ~Q(wait_kind=WaitKind.PERMISSION) | Q(wait_id__in=asked)
    now = timezone.now()
    return best(token.state(now) for token in ResumeToken.objects.filter(waited, run=run))


def tell_change(draft: Draft) -> None:
    """Say the derived status if what was written changes it; called before the events are."""
    if "launch_id" not in draft.changed and not any(event.name.startswith(_CHANGED_BY) for event in draft.events):
        return
    session = draft.session
    status = derived_status(session, draft.execution, draft.newest_run)
    if status != session.told_status:
        draft.say("session.status_derived", **{"from": session.told_status, "status": str(status)})
        draft.set(told_status=str(status))
