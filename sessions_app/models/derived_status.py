"""The derived status of a session: it follows from the newest run alone, and changes are recorded in the log."""

from __future__ import annotations

from typing import cast

from django.db.models import Q
from django.utils import timezone

from executors_app.domain import ExecutorStatus
from executors_app.models import ExecutorRunning
from sessions_app.domain.states import DerivedStatus, PermissionState, RunFacts, RunState, derive_status
from sessions_app.domain.wait_tokens import TokenState, WaitKind, most_usable_state
from sessions_app.models.runs import PermissionRequest, Run
from sessions_app.models.session import TaskSession
from sessions_app.models.transactions import SessionTransaction
from sessions_app.models.waits import ResumeToken

_STATUS_EVENTS = ("session.run.", "session.token.", "session.agentctl_")
"""Prefixes of the events that may change the derived status."""


def derived_status(session: TaskSession, execution: ExecutorRunning | None, run: Run | None) -> DerivedStatus:
    """Derive the status from the newest run; one query if the run waits, else none."""
    if run is None:
        return derive_status(None)
    waits = run.state == RunState.WAITING
    return derive_status(
        RunFacts(
            state=cast(RunState, run.state),  # a damaged value counts as ended
            waited=run.waited,
            process_gone=run.has_process and is_agent_gone(session, execution),
            token=_best_token(run) if waits else TokenState.ACTIVE,
        )
    )


def is_agent_gone(session: TaskSession, execution: ExecutorRunning | None) -> bool:
    """Return whether the session certainly has no running agent; one that does not answer may still run."""
    return not session.launch_id or execution is None or execution.status == ExecutorStatus.STOPPED


def _best_token(run: Run) -> TokenState | None:
    """Return the most usable state among the keys of what the run still waits for."""
    asked = PermissionRequest.objects.filter(run=run, state=PermissionState.PENDING).values("id")
    waited = Q(wait_id=run.wait_id) & ~Q(wait_kind=WaitKind.PERMISSION) | Q(wait_id__in=asked)
    now = timezone.now()
    return most_usable_state(token.state(now) for token in ResumeToken.objects.filter(waited, run=run))


def record_status_change(transaction: SessionTransaction) -> None:
    """Record ``session.status_derived`` if the changes of this transaction alter the derived status."""
    if "launch_id" not in transaction.changed_fields and not any(
        event.name.startswith(_STATUS_EVENTS) for event in transaction.events
    ):
        return
    session = transaction.session
    status = derived_status(session, transaction.execution, transaction.newest_run)
    if status != session.told_status:
        transaction.record_event("session.status_derived", **{"from": session.told_status, "status": str(status)})
        transaction.set_fields(told_status=str(status))
