"""Stop the sessions of this host while it drains, and let them be resumed once it is back in service.

A session is stopped when it is at rest: no turn, no request, no terminal, no script, and no process of the agent that
its policy keeps. Until then its turn goes on, but no queued prompt begins another one. The session is still meant to
run (``desired_state``): its execution only says why it was stopped, and a host that is back in service forgets that, so
that the sweeps resume it as its recovery policy says.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Final

from django.db.models import Exists, F, OuterRef, QuerySet

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import ExecutorStatus
from executors_app.wire.protocol import AgentState
from sessions_app.background.rules.background_work import BackgroundPolicy
from sessions_app.background.services import policy_of
from sessions_app.hosts import cordons
from sessions_app.hosts.own_executions import find_own_executions
from sessions_app.hosts.supervision import bound_runtimes
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, DesiredState, PermissionState, PromptState
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import (
    DRAINED_REASON,
    REFUSED_BY_HOST,
    Intent,
    IntentKind,
    LeaseLost,
    SessionTransaction,
    session_transaction,
)
from sessions_app.starts.events import Drained
from sessions_app.starts.idle_sleep import processes_if_quiet
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.turns.interruptions import record_agent_stopped, record_ended_work

log = logging.getLogger(__name__)
BATCH: Final = 200
"""Sessions that one query returns."""
RELEASED_REASON: Final = "uncordoned"
"""``status_reason`` of an execution whose host is back in service, until it is started."""
AT_REST: Final = frozenset({AgentState.IDLE, AgentState.NONE, AgentState.EXITED, AgentState.FAILED})


async def stop_sessions_at_rest(registry: ExecutionRegistry) -> bool:
    """Stop the sessions of this supervisor that are at rest; return whether any that runs here is left.

    All are looked at, so that those whose turns go on keep no other one waiting. Their ends are intents: a crash leaves
    them to the next supervisor.
    """
    after: uuid.UUID | None = None
    while running := await registry.database(load_running_here, registry.boot_id, after):
        for session_id in running:
            await _stop_if_at_rest(registry, session_id)
        after = running[-1]
    return after is not None


def load_running_here(boot_id: str, after: uuid.UUID | None = None) -> list[uuid.UUID]:
    """Return the sessions of ``boot_id`` whose executions only this host reaches and that are up; at most ``BATCH``.

    In the order of their ids; ``after``: those behind this one.
    """
    rows = ExecutorRunning.objects.filter(
        owner=boot_id,
        status=ExecutorStatus.READY,
        runtime__in=bound_runtimes(),
        session__agent_execution_id=F("id"),
    )
    if after is not None:
        rows = rows.filter(session_id__gt=after)
    return list(rows.order_by("session_id").values_list("session_id", flat=True)[:BATCH])


async def _stop_if_at_rest(registry: ExecutionRegistry, session_id: uuid.UUID) -> bool:
    stream = registry.stream_of(session_id)
    if stream is None:
        return False
    policy = await registry.database(policy_of, session_id)
    left_running = await processes_if_quiet(stream, AT_REST)
    if left_running is None or (left_running and policy is BackgroundPolicy.KEEP):
        return False
    try:
        return await registry.database(write_drained, stream, left_running)
    except LeaseLost:
        return False
    except Exception:  # one bad row never stops the others
        log.exception("session %s could not be stopped for the maintenance of its host", session_id)
        return False


def write_drained(stream: ExecutionStream, left_running: Sequence[str] = ()) -> bool:
    """Record that the session is stopped for its host, and create the stop intent; False if it has to go on.

    ``left_running`` are the command lines of processes that this ends. Raises LeaseLost.
    """
    # Decided again under the lock: since agentctl was asked, a prompt may have been sent, or the drain withdrawn.
    with session_transaction(stream.session_id, stream.lease, related=("agent_profile", "task")) as transaction:
        row = cordons.maintenance_here()
        if row is None or row.draining_at is None or not _is_at_rest(transaction):
            return False
        if left_running and policy_of(stream.session_id) is BackgroundPolicy.KEEP:
            return False
        record_ended_work(transaction, DRAINED_REASON, left_running)
        record_agent_stopped(transaction)
        transaction.set_fields(next_restart_at=None)
        transaction.move_executor("stop", status_reason=DRAINED_REASON)
        transaction.record_event(Drained(host=row.host.name))
        create_intent(transaction.session, IntentKind.STOP, None, {"reason": DRAINED_REASON})
    log.info("session %s was stopped for the maintenance of host %s", stream.session_id, row.host.name)
    return True


def _is_at_rest(transaction: SessionTransaction) -> bool:
    session, execution = transaction.session, transaction.execution
    if execution is None or execution.status != ExecutorStatus.READY or session.desired_state != DesiredState.RUNNING:
        return False
    # A start that this host refuses, and a queued prompt, wait until the host is back in service.
    intents = session.intents.filter(done_at=None).exclude(kind=IntentKind.START, payload__has_key=REFUSED_BY_HOST)
    unfinished = (PromptState.SENDING, PromptState.ACCEPTED, PromptState.DELIVERED)
    return not (
        session.runs.filter(state__in=OPEN_RUN_STATES, has_process=True).exists()
        or session.prompts.filter(state__in=unfinished).exists()
        or session.permissions.filter(state=PermissionState.PENDING).exists()
        or intents.exists()
    )


def release_drained_sessions() -> list[uuid.UUID]:
    """Forget why sessions of this host were stopped, so that sweeps resume them; return which. At most ``BATCH``.

    One whose end is still to be carried out is left: that end would write the reason again, and nobody would look.
    """
    ends = Intent.objects.filter(
        session=OuterRef("session"), kind__in=(IntentKind.STOP, IntentKind.CLOSE), done_at=None
    )
    rows = find_own_executions(_drained_executions().exclude(Exists(ends)), BATCH)
    own = {row.id: row.session_id for row in rows}
    if not own:
        return []
    # Guarded: a session that was started or stopped meanwhile has another reason.
    stopped = ExecutorRunning.objects.filter(id__in=own, status=ExecutorStatus.STOPPED, status_reason=DRAINED_REASON)
    stopped.update(status_reason=RELEASED_REASON)
    return list(own.values())


def has_drained_sessions() -> bool:
    """Whether sessions of this host that a drain has stopped are still to be released."""
    return bool(find_own_executions(_drained_executions(), 1))


def _drained_executions() -> QuerySet[ExecutorRunning]:
    rows = ExecutorRunning.objects.filter(status=ExecutorStatus.STOPPED, status_reason=DRAINED_REASON)
    return rows.filter(session__agent_execution_id=F("id"))
