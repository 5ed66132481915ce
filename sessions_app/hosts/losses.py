"""Hosts that a person has declared lost: their executions end as ``host_lost``, and their sessions can start elsewhere.

That a host does not answer proves nothing, so nothing follows from it by itself. Only a person's declaration does, and
it is refused while the host reports. Each of its sessions then gets a new execution, which any host may start; the old
one stays, so that the host can end what it still runs should it return (``returns``). Nothing is sent again: what the
agent may have received is held, and what waited in the queue waits until somebody starts the session.

The declaration is one row. The sessions are ended one by one, by whoever declared it and by every supervisor, so a
crash in between leaves the rest to the others.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.models import ExecutorRunning
from executors_app.repositories import recovery_refs
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExecutorStatus
from sessions_app.accounts.audit import record_change
from sessions_app.hosts import heartbeats
from sessions_app.hosts.cordons import find_hosts
from sessions_app.hosts.intervals import silent_after
from sessions_app.hosts.models import Host, HostMaintenance, HostProcess
from sessions_app.hosts.remaining import places_of
from sessions_app.hosts.supervision import bound_runtimes
from sessions_app.kernel import wakeups
from sessions_app.kernel.rules.states import SESSION, TERMINAL_STATES, DesiredState
from sessions_app.kernel.services.errors import HostReporting
from sessions_app.models import (
    Intent,
    IntentKind,
    SessionTransaction,
    Supervisor,
    TaskSession,
    session_transaction,
)
from sessions_app.recovery import continuity
from sessions_app.recovery.rules.resumability import HOST_LOST
from sessions_app.starts.events import HostLost
from sessions_app.suspensions.models import settle_suspension
from sessions_app.turns.interruptions import (
    hold_unsent_prompts,
    interrupt_turn,
    record_agent_stopped,
    withdraw_continuation,
)

log = logging.getLogger(__name__)
BATCH: Final = 50
"""Sessions that are read at once; each is ended in a transaction of its own."""
_DROPPED_INTENTS: Final = (IntentKind.START, IntentKind.ANSWER, IntentKind.CANCEL, IntentKind.SETTING)
"""Intents that may have been carried out there. A stop or close is kept: any host carries it out now."""


@dataclass(frozen=True, slots=True)
class LostExecution:
    """A present execution on a host that was declared lost."""

    execution_id: uuid.UUID
    session_id: uuid.UUID
    host: str
    """The name of the host."""
    repository: str
    worktree_owner: str
    branch: str
    """The branch of its worktree; empty if it never had one."""


def declare_lost(name: str, by: User | None) -> None:
    """Record that the silent hosts with this name are lost. Repeating it changes nothing.

    Its sessions are ended afterwards, with ``load_lost`` and ``end_lost``. ``by`` is None for somebody at the command
    line. Raises NotFound, and HostReporting if all hosts of that name report.
    """
    with transaction.atomic():
        hosts = find_hosts(name)
        silent = [host for host in hosts if not _reports(host)]
        if not silent:
            raise HostReporting(
                f"{name} reports that it is there, so it is not lost. Drain it instead, or stop Kandev there, wait "
                f"{silent_after().total_seconds():.0f} seconds, and declare it lost then.",
                host=name,
            )
        for host in silent:
            row, _ = HostMaintenance.objects.get_or_create(host=host)
            if row.lost_at is None:
                HostMaintenance.objects.filter(host=host).update(lost_at=timezone.now(), by=by)
                record_change(by, host, "was declared lost")
        wakeups.notify_on_commit()
    crash_points.reached("lost.declared")


def _reports(host: Host) -> bool:
    """Whether a process of the host reports, or a supervisor there renews its leases, by the database's clock."""
    places = places_of([host])
    # By place, too: a machine that was renamed reports under its new name.
    own = Q(host=host) | Q(place__in=places)
    beating = HostProcess.objects.filter(own, ended_at=None, beat_at__gte=Now() - silent_after())
    return beating.exists() or Supervisor.objects.alive().filter(host_id__in=places).exists()


def count_lost(name: str = "") -> int:
    """Return how many executions of lost hosts are still to be ended; of the host with this name, or of all."""
    return _open_executions(name).count()


def load_lost(name: str = "", limit: int = BATCH) -> list[LostExecution]:
    """Return the next executions of lost hosts that are to be ended; of the host with this name, or of all."""
    # In random order: sessions that cannot be ended would otherwise keep all others.
    rows = _open_executions(name).select_related("session__task__repository").order_by("?")[:limit]
    names = _names_of_lost_places()
    return [_lost_execution(row, names.get(row.host_id, name)) for row in rows]


def _open_executions(name: str) -> QuerySet[ExecutorRunning]:
    lost = HostMaintenance.objects.exclude(lost_at=None)
    if name:
        lost = lost.filter(host__name=name)
    places = HostProcess.objects.filter(host__in=lost.values("host")).order_by().values("place")
    rows = ExecutorRunning.objects.filter(
        host_id__in=places, runtime__in=bound_runtimes(), session__agent_execution_id=F("id")
    )
    ended = Q(session__state__in=TERMINAL_STATES, status=ExecutorStatus.STOPPED)
    return rows.exclude(ended & ~_has_open_intent())


def _has_open_intent() -> Exists:
    return Exists(Intent.objects.filter(session=OuterRef("session"), done_at=None))


def _names_of_lost_places() -> dict[str, str]:
    rows = HostProcess.objects.exclude(host__maintenance__lost_at=None).order_by("beat_at")
    return dict(rows.values_list("place", "host__name"))


def _lost_execution(row: ExecutorRunning, host: str) -> LostExecution:
    session: TaskSession = row.session
    repository = session.task.repository
    return LostExecution(
        execution_id=row.id,
        session_id=session.id,
        host=host,
        repository=repository.path if repository else "",
        worktree_owner=str(session.worktree_owner_id),
        branch=row.worktree_branch,
    )


def is_work_here(lost: LostExecution) -> bool:
    """Whether the branch or a snapshot of the session is on this machine; runs git, so never in a transaction.

    True for a session that never had a worktree: it has nothing to lose.
    """
    if not lost.branch:
        return True
    if not lost.repository:
        return False
    try:
        recovery_refs.find_saved_work(Path(lost.repository), lost.worktree_owner, lost.branch)
    except (ExecutorError, OSError, ValueError) as error:
        log.info("session %s: its work is not on this machine: %s", lost.session_id, error)
        return False
    return True


def end_lost(lost: LostExecution, *, is_here: bool) -> bool:
    """End one execution as ``host_lost``, and give its session another one; False if it has been ended already.

    ``is_here``: what ``is_work_here`` has found.
    """
    message = _message(lost, is_here=is_here)
    with session_transaction(lost.session_id, related=("agent_profile", "task", "executor")) as change:
        execution = change.execution
        if execution is None or execution.id != lost.execution_id:
            return False
        _drop_intents(change)
        interrupt_turn(change, HOST_LOST, may_continue=False)
        withdraw_continuation(change)
        hold_unsent_prompts(change)
        settle_suspension(change)
        record_agent_stopped(change)
        # The agent's own conversation is on the lost host: elsewhere, it gets the history or begins anew.
        continuity.set_token_aside(change, is_lost=False)
        change.set_fields(next_restart_at=None, start_rank=None)
        # The lease is taken away with a higher generation: a supervisor there that lives after all writes nothing more.
        change.move_executor(
            "stop",
            status_reason=HOST_LOST,
            owner="",
            lease_expires_at=None,
            generation=execution.generation + 1,
        )
        change.record_event(HostLost(host=lost.host, is_work_here=is_here))
        _replace_execution(change, execution)
        wanted = change.session.desired_state == DesiredState.RUNNING
        if wanted and SESSION.allows(change.session.state, "fail"):
            change.move_session("fail", error_code=HOST_LOST, error_message=message)
        wakeups.notify_on_commit()
        crash_points.reached("lost.unwritten", lost.session_id)
    crash_points.reached("lost.ended", lost.session_id)
    return True


def _message(lost: LostExecution, *, is_here: bool) -> str:
    here = heartbeats.host_name()
    if not lost.branch:
        return f"The host {lost.host} was declared lost before this session had a workspace there."
    if is_here:
        return (
            f"The host {lost.host} was declared lost. Branch and last saved work of this session are on {here}; "
            f"what came later is on {lost.host}."
        )
    return (
        f"The host {lost.host} was declared lost, and the work of this session is there: neither its branch nor a "
        f"snapshot was found on {here}."
    )


def _drop_intents(change: SessionTransaction) -> None:
    dropped = change.session.intents.filter(done_at=None, kind__in=_DROPPED_INTENTS)
    dropped.update(done_at=timezone.now(), outcome=HOST_LOST)


def _replace_execution(change: SessionTransaction, lost: ExecutorRunning) -> None:
    """Give the session an execution that is on no host yet. The address of the lost one stays with that.

    It keeps the branch: a start then rebuilds the worktree from it and the last snapshot, and makes no empty one.
    """
    made = ExecutorRunning.objects.create(
        session=change.session,
        task_id=lost.task_id,
        executor=change.session.executor,
        runtime=change.session.executor.runtime,
        status=ExecutorStatus.STOPPED,
        status_reason=HOST_LOST,
        supports_workspace_only=lost.supports_workspace_only,
        worktree_branch=lost.worktree_branch,
        rejected_resume_token=lost.rejected_resume_token,
    )
    change.set_fields(agent_execution_id=made.id, worktree_path="")
    change.attach_execution(made)
