"""A start's claim, and what it writes once agentctl is up."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from django.db.models import QuerySet
from django.utils import timezone

from executors_app import capacity
from executors_app.agentctl.process import identity
from executors_app.domain import ExecutionFacts, ExecutorStatus, Launched, LaunchSpec
from executors_app.models import Executor, ExecutorRunning
from sessions_app.domain.integrity import DAMAGED_ROW
from sessions_app.domain.recovery_facts import UNREACHABLE
from sessions_app.domain.resumability import Mode
from sessions_app.domain.states import TERMINAL_STATES, DesiredState, SessionState
from sessions_app.models import (
    QUEUED_FOR_CAPACITY,
    Intent,
    IntentKind,
    Lease,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.models.bulk import update_row
from sessions_app.services.assessment import is_running, session_flaws
from sessions_app.services.intents import due_intents
from sessions_app.supervisor import leases
from sessions_app.supervisor.executions import (
    SESSION_RELATED,
    address_columns,
    execution_facts_of,
    launch_spec_of,
    load_execution,
    load_session,
)
from sessions_app.supervisor.outcomes import settle_intent

AMPLE_CAPACITY = 32
"""Places that are free beside one: then nobody waits for one, and no two starts take the same."""


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
    """The row knows of an earlier agentctl, whose processes may have outlived it."""


def claim_start(
    session_id: uuid.UUID,
    intent_id: uuid.UUID,
    me: str,
    *,
    lives: str | None,
    held: Lease | None = None,
    in_grace: bool = False,
) -> StartClaim | None:
    """Claim a start order under the lease; None where there is nothing (more) to do for us. Raises LeaseLost.

    ``lives`` is the launch of the agent that was found where we are attached, None where we are not;
    ``held`` is the lease of that stream, which need not be taken again.
    A start is counted before it is made (rule 33), once: a supervisor that finds a claimed one goes on with it.
    ``in_grace``: the supervisor has only just begun, and counts none.
    """
    with session_transaction(session_id, held, related=SESSION_RELATED) as transaction:
        lease = held or _take_lease(transaction, intent_id, me)
        if lease is None:
            return None
        return claim_start_within(transaction, intent_id, lease, lives=lives, in_grace=in_grace)


def claim_start_within(
    transaction: SessionTransaction, intent_id: uuid.UUID, lease: Lease, *, lives: str | None, in_grace: bool = False
) -> StartClaim | None:
    """The same, in the caller's transaction and under a lease that it holds."""
    intent = Intent.objects.select_for_update().filter(id=intent_id).first()
    if intent is None:
        raise Intent.DoesNotExist(f"no order {intent_id}")
    if not _is_executable(transaction, intent, lives):
        return None
    if not in_grace:
        _count_attempt(transaction, intent)
    transaction.set_fields(start_rank=None)
    intent.claimed_generation = lease.generation
    update_row(intent, ["claimed_generation"])
    if intent.payload.get("mode") != Mode.WORKSPACE_ONLY or transaction.session.state == SessionState.CREATED:
        _mark_starting(transaction)
    if lives is None:
        transaction.move_executor("launch", host_id=identity.host_id())  # a half-done launch is found here alone
    return _build_claim(transaction.session, _locked(transaction), intent, lease)


def _mark_starting(transaction: SessionTransaction) -> None:
    """The session starts; one whose place did not answer stays *unreachable* until it does: so far it is only asked."""
    session = transaction.session
    unknown = session.error_code == UNREACHABLE
    transaction.move_session(
        "start",
        error_code=UNREACHABLE if unknown else "",
        error_message=session.error_message if unknown else "",
    )


def _take_lease(transaction: SessionTransaction, intent_id: uuid.UUID, me: str) -> Lease | None:
    """The lease of the session's execution; None where another holds it, or nobody is to have it, which is said."""
    execution = transaction.execution
    if session_flaws(transaction.session, execution):
        settle_intent(intent_id, DAMAGED_ROW)
        return None
    if execution is None:
        settle_intent(intent_id, "no_execution")
        return None
    del transaction.execution  # to be read as it is under our lease
    return leases.acquire_lease(execution.id, me)


def _is_executable(transaction: SessionTransaction, intent: Intent, lives: str | None) -> bool:
    """Whether the order is open and can be carried out now; one that has become pointless is settled."""
    refused = _reason_pointless(transaction, intent, lives)
    if intent.done_at is None and refused:
        settle_intent(intent.id, refused)
    if intent.done_at is not None or refused:
        return False
    if lives is None and _has_no_capacity(transaction.session, intent):  # an agentctl that is up has its place
        _mark_queued_for_capacity(intent)
        return False
    return True


def _reason_pointless(transaction: SessionTransaction, intent: Intent, lives: str | None) -> str:
    """Why there is nothing to start; the start of an agent that is up has been done, unless its answer was lost."""
    if session_flaws(transaction.session, transaction.execution):
        return DAMAGED_ROW
    if transaction.session.desired_state != DesiredState.RUNNING or transaction.session.task.is_over:
        return "stopped"
    if transaction.session.state in TERMINAL_STATES:
        return "terminal_state"
    up = lives not in (None, str(intent.id)) and _is_up(transaction)
    return "already_running" if up and intent.payload.get("mode") != Mode.FRESH_START else ""


def _is_up(transaction: SessionTransaction) -> bool:
    """Its agent is; or, of a session without one, its workspace."""
    if transaction.session.has_agent:
        return is_running(transaction.session, transaction.execution)
    return transaction.execution is not None and transaction.execution.status == ExecutorStatus.READY


def _has_no_capacity(session: TaskSession, intent: Intent) -> bool:
    """Whether its place has no room for it, or only for those that have waited longer."""
    limit = capacity.agent_limit(session.executor) if session.has_agent else None
    if limit is None:
        return False
    sharing = capacity.executors_sharing_room(session.executor)
    if _live_in_same_place(session, sharing) + AMPLE_CAPACITY < limit:
        return False
    list(sharing.select_for_update(no_key=True).order_by("id"))  # of two starts one sees the other
    live = _live_in_same_place(session, sharing)
    return live >= limit or live + _queued_before(sharing, intent) >= limit


def _live_in_same_place(session: TaskSession, sharing: QuerySet[Executor]) -> int:
    number: int = capacity.live_executions(sharing).exclude(session=session).count()
    return number


def _queued_before(sharing: QuerySet[Executor], intent: Intent) -> int:
    """How many starts there wait for room since before this order, and could begin."""
    earlier = Intent.objects.filter(
        due_intents(),
        kind=IntentKind.START,
        done_at=None,
        created_at__lt=intent.created_at,
        session__executor__in=sharing,
    )
    waits = {f"payload__{QUEUED_FOR_CAPACITY}": True, "claimed_generation": None}
    waiting: int = earlier.filter(**waits).exclude(id=intent.id).count()
    return waiting


def _mark_queued_for_capacity(intent: Intent) -> None:
    """There is no room: said in the order, which is looked at again whenever something changes."""
    if not intent.payload.get(QUEUED_FOR_CAPACITY):
        intent.payload = {**intent.payload, QUEUED_FOR_CAPACITY: True}
        update_row(intent, ["payload"])


def _count_attempt(transaction: SessionTransaction, intent: Intent) -> None:
    if intent.claimed_generation is None and intent.by_id is None:
        transaction.set_fields(start_attempts=transaction.session.start_attempts + 1)


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
    )


def write_launch(plan: StartClaim, launched: Launched) -> bool:
    """Agentctl is up: keep where it is; False where the session was stopped meanwhile. Raises LeaseLost."""
    with session_transaction(plan.session_id, plan.lease) as transaction:
        wanted = transaction.session.desired_state == DesiredState.RUNNING
        transaction.move_executor("ready" if wanted else "stop", **_launch_paths(launched))
        transaction.set_fields(
            worktree_id=launched.worktree_id,
            worktree_path=launched.worktree_path,
            worktree_branch=launched.worktree_branch,
        )
    return wanted


def _launch_paths(launched: Launched) -> dict[str, object]:
    return {
        **address_columns(launched.url),
        "host_id": identity.host_id(),
        "pid": launched.pid,
        "boot_id": launched.boot_id,
        "container_id": launched.container_id,
        "workspace_path": launched.workspace_path,
        "worktree_id": launched.worktree_id,
        "worktree_path": launched.worktree_path,
        "worktree_branch": launched.worktree_branch,
        "state": dict(launched.state),
        "last_seen_at": timezone.now(),
    }


def launched_facts(session_id: uuid.UUID, launched: Launched) -> ExecutionFacts:
    """The facts of what was just launched, whatever the row says."""
    session = load_session(session_id)
    execution = _claimed_execution(session)
    return replace(
        execution_facts_of(execution, session), agentctl_url=launched.url, pid=launched.pid, state=launched.state
    )


def _claimed_execution(session: TaskSession) -> ExecutorRunning:
    """The execution that the claim was made on."""
    found = load_execution(session)
    if found is None:
        raise ExecutorRunning.DoesNotExist(f"session {session.id} has no execution")
    return found
