"""Claim a start intent under the lease, and write where agentctl runs once it is up."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import QuerySet
from django.utils import timezone

from executors_app import capacity
from executors_app.machine.process import identity
from executors_app.models import Executor, ExecutorRunning
from executors_app.wire.executions import ExecutionFacts, ExecutorStatus, Launched, LaunchSpec
from sessions_app.agents.services.mcp_servers import inherited_servers
from sessions_app.hosts import cordons
from sessions_app.kernel.rules.states import TERMINAL_STATES, DesiredState, SessionState
from sessions_app.models import (
    QUEUED_FOR_CAPACITY,
    REFUSED_BY_HOST,
    Intent,
    IntentKind,
    Lease,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.placement.pools import needs_place, place_session
from sessions_app.placement.services.waiting import waiting_starts, waits_where
from sessions_app.recovery.rules.resumability import UNREACHABLE, Mode
from sessions_app.recovery.services.assessment import DAMAGED_ROW, execution_facts_of, is_running, session_flaws
from sessions_app.sessions.services.intents import due_intents
from sessions_app.starts.outcomes import settle_intent
from sessions_app.supervisor import leases
from sessions_app.supervisor.executions import (
    SESSION_RELATED,
    launch_spec_of,
)

_LOST: Final = ("stopped", "terminal_state")
"""Why there is nothing to start if the session was stopped, maybe while a start of it was carried out."""
AMPLE_CAPACITY = 32
"""With more free places than this, no lock is taken to count them: concurrent starts cannot use them all up."""


@dataclass(frozen=True, slots=True)
class StartClaim:
    """A start that this supervisor has claimed."""

    session_id: uuid.UUID
    intent_id: uuid.UUID
    mode: str
    lease: Lease
    facts: ExecutionFacts
    spec: LaunchSpec
    leftovers: bool
    """Whether the row names an earlier agentctl, whose processes may have outlived it."""
    inherited_servers: Mapping[str, Any]
    """The MCP servers of repository and team; those of the first try of this start, if that has chosen some."""
    login: Mapping[str, Any] = field(default_factory=dict)
    """``{"action", "method"}`` of the login or logout that the start carries; empty: none."""


def claim_start(
    session_id: uuid.UUID,
    intent_id: uuid.UUID,
    boot_id: str,
    *,
    running_launch_id: str | None,
    held_lease: Lease | None = None,
    in_grace: bool = False,
) -> StartClaim | None:
    """Claim a start intent under the lease; None if there is nothing for this supervisor to start. Raises LeaseLost.

    ``running_launch_id`` is the launch id of the agent found when we attached (empty: agentctl without an agent), or
    None if we are not attached. ``held_lease`` is the lease of that stream, so that none has to be taken.

    A start is counted before it is made, so that a crash during it counts too (rule 33). It is counted once: a
    supervisor that finds a claimed intent continues with it. ``in_grace`` exempts it from counting.
    """
    with session_transaction(session_id, held_lease, related=SESSION_RELATED) as transaction:
        # Before the lease is taken, because another host's supervisor may need it.
        if held_lease is None and (_is_refused_here(transaction, intent_id) or not _has_place(transaction, intent_id)):
            return None
        lease = held_lease or _take_lease(transaction, intent_id, boot_id)
        if lease is None:
            return None
        return claim_start_within(transaction, intent_id, lease, running_launch_id=running_launch_id, in_grace=in_grace)


def claim_start_within(
    transaction: SessionTransaction,
    intent_id: uuid.UUID,
    lease: Lease,
    *,
    running_launch_id: str | None,
    in_grace: bool = False,
) -> StartClaim | None:
    """Do what ``claim_start`` does, in the caller's transaction and under a lease that it holds."""
    intent = Intent.objects.select_for_update().filter(id=intent_id).first()
    if intent is None:
        raise Intent.DoesNotExist(f"no intent {intent_id}")
    if not _is_executable(transaction, intent, running_launch_id):
        return None
    if not in_grace and intent.claimed_generation is None and intent.by_id is None:
        transaction.set_fields(start_attempts=transaction.session.start_attempts + 1)
    transaction.set_fields(start_rank=None)
    intent.claimed_generation = lease.generation
    intent.payload.pop(REFUSED_BY_HOST, None)
    intent.save(update_fields=["claimed_generation", "payload"])
    if intent.payload.get("mode") != Mode.WORKSPACE_ONLY or transaction.session.state == SessionState.CREATED:
        _mark_starting(transaction)
    if running_launch_id is None:
        # The host is written before the launch: after a crash, only this machine can find an unfinished one.
        transaction.move_executor("launch", host_id=identity.host_id())
    return _build_claim(transaction.session, _locked(transaction), intent, lease)


def _has_place(transaction: SessionTransaction, intent_id: uuid.UUID) -> bool:
    """Whether the session has an executor that this supervisor may start it on; its pool chooses one, if it has one."""
    if not needs_place(transaction.session, transaction.execution):
        return True
    return place_session(transaction, intent_id)


def _mark_starting(transaction: SessionTransaction) -> None:
    """Move the session to its start; an *unreachable* one keeps that error until its place answers."""
    session = transaction.session
    if session.error_code == UNREACHABLE:
        transaction.move_session("start", error_code=UNREACHABLE, error_message=session.error_message)
    else:
        transaction.move_session("start", error_code="", error_message="")


def _take_lease(transaction: SessionTransaction, intent_id: uuid.UUID, boot_id: str) -> Lease | None:
    """Take the lease of the session's execution; None if another supervisor holds it.

    Also None if the rows are corrupt or name no execution: the intent is then settled with that outcome.
    """
    execution = transaction.execution
    if session_flaws(transaction.session, execution):
        settle_intent(intent_id, DAMAGED_ROW)
        return None
    if execution is None:
        settle_intent(intent_id, "no_execution")
        return None
    del transaction.execution  # drop the cached row: it still has the owner and generation from before our lease
    return leases.acquire_lease(execution.id, boot_id)


def _is_refused_here(transaction: SessionTransaction, intent_id: uuid.UUID) -> bool:
    """Whether people have taken this host out of service for such a start; the intent then names the host."""
    execution = transaction.execution
    if execution is None:
        return False
    host = cordons.refusing_host(execution)
    if not host:
        return False
    intent = Intent.objects.select_for_update().filter(id=intent_id, done_at=None).first()
    if intent is not None and intent.payload.get(REFUSED_BY_HOST) != host:
        intent.payload = {**intent.payload, REFUSED_BY_HOST: host}
        intent.save(update_fields=["payload"])
    return True


def _is_executable(transaction: SessionTransaction, intent: Intent, running_launch_id: str | None) -> bool:
    """Whether the intent is open and can be carried out now; a pointless one is settled."""
    refused = _reason_pointless(transaction, intent, running_launch_id)
    # What may have launched something stays open until that has ended (``execution._undo_lost_start``).
    may_run = intent.claimed_generation is not None and refused in _LOST
    if intent.done_at is None and refused and not may_run:
        settle_intent(intent.id, refused)
    if intent.done_at is not None or refused:
        return False
    if running_launch_id is None and _has_no_capacity(
        transaction.session, intent
    ):  # a running agentctl has its place already
        _mark_queued_for_capacity(intent)
        return False
    return True


def _reason_pointless(transaction: SessionTransaction, intent: Intent, running_launch_id: str | None) -> str:
    """Return why there is nothing to start, or an empty string.

    A running agent needs no start, except one of this same launch: its answer was lost and has to be requested again.
    """
    if session_flaws(transaction.session, transaction.execution):
        return DAMAGED_ROW
    if transaction.session.desired_state != DesiredState.RUNNING or transaction.session.task.is_over:
        return "stopped"
    if transaction.session.state in TERMINAL_STATES:
        return "terminal_state"
    up = running_launch_id not in (None, str(intent.id)) and _is_up(transaction)
    if up and intent.payload.get("mode") != Mode.FRESH_START:
        return "already_running"
    return ""


def has_lost_to_stop(session_id: uuid.UUID, intent_id: uuid.UUID) -> bool:
    """Whether a start was claimed and is open although its session was stopped, and that stop has been carried out."""
    if not _open_claim(intent_id).exists():
        return False
    with session_transaction(session_id) as transaction:
        stops = transaction.session.intents.filter(kind__in=(IntentKind.STOP, IntentKind.CLOSE), done_at=None)
        return _is_lost(transaction, intent_id) and not stops.exists()


def settle_lost_start(session_id: uuid.UUID, intent_id: uuid.UUID) -> None:
    """Settle a start that has lost to a stop, unless its session was resumed meanwhile, which uses the same start."""
    with session_transaction(session_id) as transaction:
        if _is_lost(transaction, intent_id):
            settle_intent(intent_id, "stopped")


def _is_lost(transaction: SessionTransaction, intent_id: uuid.UUID) -> bool:
    intent = _open_claim(intent_id).first()
    return intent is not None and _reason_pointless(transaction, intent, None) in _LOST


def _open_claim(intent_id: uuid.UUID) -> QuerySet[Intent]:
    return Intent.objects.filter(id=intent_id, done_at=None, claimed_generation__isnull=False)


def _is_up(transaction: SessionTransaction) -> bool:
    """Whether the session's agent is running; for a session without an agent, whether its workspace is up."""
    if transaction.session.has_agent:
        return is_running(transaction.session, transaction.execution)
    return transaction.execution is not None and transaction.execution.status == ExecutorStatus.READY


def _has_no_capacity(session: TaskSession, intent: Intent) -> bool:
    """Whether the executor has no room, or only for sessions that have waited longer."""
    if not session.has_agent:
        return False
    limit = capacity.agent_limit(session.executor)
    if limit is None:
        return False
    sharing = capacity.executors_sharing_room(session.executor)
    if _live_in_same_place(session, sharing) + AMPLE_CAPACITY < limit:
        return False
    # Locked before counting: otherwise two concurrent starts could each see the last free place and take it.
    list(sharing.select_for_update(no_key=True).order_by("id"))
    live = _live_in_same_place(session, sharing)
    return live >= limit or live + _queued_before(session.executor, intent) >= limit


def _live_in_same_place(session: TaskSession, sharing: QuerySet[Executor]) -> int:
    number: int = capacity.live_executions(sharing).exclude(session=session).count()
    return number


def _queued_before(executor: Executor, intent: Intent) -> int:
    """Return how many due starts there have waited for room since before this intent."""
    earlier = waiting_starts().filter(due_intents(), waits_where(executor), created_at__lt=intent.created_at)
    waiting: int = earlier.exclude(id=intent.id).count()
    return waiting


def _mark_queued_for_capacity(intent: Intent) -> None:
    """Note in the intent that it waits for room; the dispatcher tries it again at every change of the database."""
    if not intent.payload.get(QUEUED_FOR_CAPACITY):
        intent.payload = {**intent.payload, QUEUED_FOR_CAPACITY: True}
        intent.save(update_fields=["payload"])


def _locked(transaction: SessionTransaction) -> ExecutorRunning:
    execution = transaction.execution
    assert execution is not None, "the lease was checked against it"  # noqa: S101
    if execution.executor_id == transaction.session.executor_id:
        execution.executor = transaction.session.executor  # read with the session
    return execution


def _build_claim(session: TaskSession, execution: ExecutorRunning, intent: Intent, lease: Lease) -> StartClaim:
    if not execution.auth_token:
        execution.auth_token = uuid.uuid4().hex + uuid.uuid4().hex
        execution.save(update_fields=["auth_token"])
    facts = execution_facts_of(execution, session)
    return StartClaim(
        session_id=session.id,
        intent_id=intent.id,
        mode=str(intent.payload.get("mode", Mode.AUTO)),
        lease=lease,
        facts=facts,
        spec=launch_spec_of(execution, session),
        leftovers=bool(execution.agentctl_url),
        inherited_servers=_inherited_servers(session, intent),
        login=intent.payload.get("login") or {},
    )


def _inherited_servers(session: TaskSession, intent: Intent) -> Mapping[str, Any]:
    frozen: Mapping[str, Any] | None = intent.payload.get("mcp_servers")
    if frozen is None:
        return inherited_servers(session.task.team_id, session.task.repository_id)
    return frozen


def write_launch(plan: StartClaim, launched: Launched) -> bool:
    """Write where the launched agentctl is; return False if the session was stopped meanwhile. Raises LeaseLost.

    The address is written either way: after a crash, the sweep must find what runs. A crash before this write leaves
    an unfinished launch, which the next launch finds again by its ids (rule 4).
    """
    with session_transaction(plan.session_id, plan.lease) as transaction:
        is_wanted = transaction.session.desired_state == DesiredState.RUNNING
        move = "ready"
        if not is_wanted:
            move = "stop"
        worktree = {name: getattr(launched, name) for name in ("worktree_id", "worktree_path", "worktree_branch")}
        transaction.move_executor(
            move,
            **ExecutorRunning.address_columns(launched.url),
            host_id=identity.host_id(),
            pid=launched.pid,
            boot_id=launched.boot_id,
            container_id=launched.container_id,
            workspace_path=launched.workspace_path,
            **worktree,
            state=dict(launched.state),
            last_seen_at=timezone.now(),
        )
        transaction.set_fields(**worktree)
    return is_wanted
