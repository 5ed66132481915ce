"""Carry out a start intent: claim it, launch the workspace and agentctl, open the stream, start the agent.

Every step may be repeated after a crash: the intent stays open until its outcome is written.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from functools import partial
from typing import Final

from django.conf import settings
from django.db import Error, InterfaceError, OperationalError

from executors_app.machine import crash_points
from executors_app.plugins import runtime
from executors_app.runtimes import SupportsSharedWorktrees
from executors_app.wire.errors import AgentctlRefused, AgentctlUnreachable, ExecutorError, LaunchFailed, StaleGeneration
from executors_app.wire.executions import ExecutionFacts, Launched
from executors_app.wire.protocol import Code
from sessions_app.agents.services.agent_login import login_limit
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import Lease, LeaseLost, session_transaction
from sessions_app.placement.start_claims import is_ours
from sessions_app.prompts import services as prompts
from sessions_app.recovery import prepared_histories
from sessions_app.starts import agent_start, claims
from sessions_app.starts.admission import load_executor_id
from sessions_app.starts.agent_start import AgentStartRequest
from sessions_app.starts.claims import StartClaim
from sessions_app.starts.launch_waits import launch_reporting
from sessions_app.starts.outcomes import (
    StartFailure,
    is_last_start_attempt,
    settle_intent,
    start_failure_from,
    write_start_failure,
)
from sessions_app.supervisor import execution_registry, leases
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream
from sessions_app.supervisor.executions import SESSION_RELATED, load_execution_facts


def claim_and_prepare(
    session_id: uuid.UUID,
    intent_id: uuid.UUID,
    lease: Lease,
    *,
    running_launch_id: str,
    found: str | None,
    in_grace: bool = False,
) -> tuple[StartClaim, AgentStartRequest | None] | None:
    """Claim a start and prepare its agent in one transaction, under a lease that is held; None without a claim.

    If the preparation fails, its rollback would also undo the count of the attempt, and the start could be repeated
    without limit (rule 33). So the claim is then committed alone, and the preparation raises its error again.
    """
    try:
        with session_transaction(session_id, lease, related=SESSION_RELATED) as transaction:
            plan = claims.claim_start_within(
                transaction, intent_id, lease, running_launch_id=running_launch_id, in_grace=in_grace
            )
            if plan is None:
                return None
            return plan, agent_start.prepare_agent_start_within(transaction, plan, found=found)
    except (LeaseLost, Error):
        raise
    except Exception:  # noqa: BLE001  (raised again by the preparation below)
        plan = claims.claim_start(
            session_id, intent_id, lease.owner, running_launch_id=running_launch_id, held_lease=lease, in_grace=in_grace
        )
        if plan is None:
            return None
        return (plan, agent_start.prepare_agent_start(plan, lease, found=found))


log = logging.getLogger(__name__)
TIMEOUT_MARGIN = 10
"""Seconds that we wait for an answer beyond the time limit of a start, so that agentctl's own error arrives first."""


async def execute_start(registry: ExecutionRegistry, session_id: uuid.UUID, intent_id: uuid.UUID) -> None:
    """Carry out one start intent; return when it is settled, or left open for another try or another supervisor."""
    try:
        async with registry.starts.place(session_id, partial(registry.database, load_executor_id, session_id)):
            async with asyncio.timeout(settings.KANDEV_START_TIMEOUT) as limit:
                with registry.changes.urgent():
                    await _start(registry, session_id, intent_id, limit)
    except LeaseLost:
        log.info("session %s: it was stopped, or another supervisor carries out its start", session_id)
    except TimeoutError:
        limit_text = f"{plural(settings.KANDEV_START_TIMEOUT, '1 second', '{:g} seconds')} (KANDEV_START_TIMEOUT)"
        message = f"The start took longer than {limit_text}. The time of a login in it is not counted."
        await _write_failure(registry, session_id, intent_id, None, StartFailure(str(Code.START_TIMEOUT), message))
    except ExecutorError as error:
        failure = start_failure_from(error, executor_failed=False)
        await _write_failure(registry, session_id, intent_id, None, failure)
    except (OperationalError, InterfaceError) as error:  # the database is unavailable: the intent stays open
        log.warning("session %s: its start could not be written: %s", session_id, error)
    except Exception as error:  # one bad session never stops the others
        log.exception("session %s: its start failed", session_id)
        failure = StartFailure(str(Code.INTERNAL_ERROR), f"The start failed: {type(error).__name__}")
        await _write_failure(registry, session_id, intent_id, None, failure)


async def _start(
    registry: ExecutionRegistry, session_id: uuid.UUID, intent_id: uuid.UUID, limit: asyncio.Timeout
) -> None:
    live = registry.stream_of(session_id)
    if live is not None:
        await _start_on_live_agentctl(registry, live, intent_id, limit)
        return
    if not await registry.database(is_ours, session_id, intent_id):
        return
    in_grace = registry.grace.is_exempt(session_id)
    plan = await registry.database(
        claims.claim_start, session_id, intent_id, registry.boot_id, running_launch_id=None, in_grace=in_grace
    )
    if plan is None:
        await _undo_lost_start(registry, session_id, intent_id)
        return
    _add_login_time(limit, plan)
    registry.grace.record_start(session_id)
    crash_points.reached("supervisor.start_claimed", session_id)
    try:
        stream = await _launch(registry, plan)
    except (AgentctlUnreachable, AgentctlRefused, LaunchFailed, ExecutorError) as error:
        failure = start_failure_from(error, executor_failed=True)
        await _write_failure(registry, session_id, intent_id, plan.lease, failure)
        return
    if stream is None:
        return  # stopped during the launch, or taken over by another supervisor
    await _open_agent(registry, stream, plan)


def _add_login_time(limit: asyncio.Timeout, plan: claims.StartClaim) -> None:
    """Extend the time limit of a start by that of its login, which has a limit of its own."""
    ends = limit.when()
    if ends is not None:
        limit.reschedule(ends + login_limit(plan.login))


async def _start_on_live_agentctl(
    registry: ExecutionRegistry, live: ExecutionStream, intent_id: uuid.UUID, limit: asyncio.Timeout
) -> None:
    """Start an agent on an agentctl to which we are attached; the claim and the preparation share a transaction."""
    claimed = await registry.database(
        claim_and_prepare,
        live.session_id,
        intent_id,
        live.lease,
        running_launch_id=live.observed_launch,
        found=live.living_launch,
        in_grace=registry.grace.is_exempt(live.session_id),
    )
    if claimed is None:
        await _undo_lost_start(registry, live.session_id, intent_id)
        return
    registry.grace.record_start(live.session_id)
    plan, order = claimed
    _add_login_time(limit, plan)
    crash_points.reached("supervisor.start_claimed", live.session_id)
    if order is not None:
        await _open_prepared(registry, live, plan, order)


async def _launch(registry: ExecutionRegistry, plan: claims.StartClaim) -> ExecutionStream | None:
    place = runtime(plan.facts.runtime)
    if plan.spec.worktree_id and not isinstance(place, SupportsSharedWorktrees):
        raise LaunchFailed(f"Sessions on {place.name} cannot share a worktree.")
    # Before the launch: processes of an earlier agentctl must not work in the same worktree as the next agent.
    if plan.leftovers:
        await place.end_leftovers(plan.facts)
    launched: Launched = await launch_reporting(registry, plan, place)
    crash_points.reached("supervisor.launched", plan.session_id)
    # Written before the stream opens: from here on every supervisor can find this agentctl.
    kept = await registry.database(claims.write_launch, plan, launched)
    crash_points.reached("supervisor.launch_written", plan.session_id)
    if not kept:
        await _undo_lost_start(registry, plan.session_id, plan.intent_id)
        return None
    return await registry.open_stream(plan.session_id)


async def _undo_lost_start(registry: ExecutionRegistry, session_id: uuid.UUID, intent_id: uuid.UUID) -> None:
    """End what a start has launched that loses to a stop, then settle it; does nothing for any other start.

    The stop may have looked for processes before there were any: while agentctl was launched, or after the supervisor
    that launched it had crashed. So the start stays open until this is done.
    """
    if not await registry.database(claims.has_lost_to_stop, session_id, intent_id):
        return
    facts = await registry.database(load_execution_facts, session_id)
    if facts is None:
        return
    execution_id = uuid.UUID(facts.id)
    lease = await registry.database(leases.acquire_lease, execution_id, registry.boot_id)
    if lease is None or not await end_execution(facts):
        return
    await registry.database(claims.settle_lost_start, session_id, intent_id)
    await registry.database(leases.release_leases, registry.boot_id, execution_id)
    registry.listener.wake_session(session_id)  # it may have been resumed meanwhile


async def end_execution(facts: ExecutionFacts) -> bool:
    """End what runs of an execution, also what an unfinished launch has started; return False if it may still run."""
    if not facts.agentctl_url and not facts.host_id:
        return True  # nothing was ever launched: the host is written before that
    if await runtime(facts.runtime).end(facts):
        return True
    log.warning("session %s: not everything of its execution could be ended", facts.session_id)
    # Without an address no launch has ended. Its place may be one that nobody can reach, which must not keep the
    # session from being stopped.
    return not facts.agentctl_url


async def _open_agent(registry: ExecutionRegistry, stream: ExecutionStream, plan: claims.StartClaim) -> None:
    """Start the agent with the strategy that the assessment names; without one, only the workspace stays up."""
    order = await registry.database(agent_start.prepare_agent_start, plan, stream.lease, found=stream.living_launch)
    if order is not None:
        await _open_prepared(registry, stream, plan, order)


async def _open_prepared(
    registry: ExecutionRegistry, stream: ExecutionStream, plan: claims.StartClaim, order: agent_start.AgentStartRequest
) -> None:
    crash_points.reached("supervisor.agent_prepared", plan.session_id)
    # Before the agent starts: it would change the files that an interrupted turn is compared by.
    await record_interrupted_work(registry, stream, order.unfinished_since)
    with stream.starting():
        await _start_agent(registry, stream, plan, order)


async def _start_agent(
    registry: ExecutionRegistry, stream: ExecutionStream, plan: claims.StartClaim, order: agent_start.AgentStartRequest
) -> None:
    """Have agentctl start the agent, and write the outcome; the facts to verify its answer by are read meanwhile."""
    if order.injects:
        await prepared_histories.prepare(registry.database, plan.session_id)
    patience = settings.KANDEV_START_TIMEOUT + login_limit(plan.login) + TIMEOUT_MARGIN
    try:
        answer, known = await asyncio.gather(
            stream.client.start_agent(order.body, timeout=patience),
            registry.database(agent_start.load_conversation_facts, plan.session_id),
        )
    except StaleGeneration:
        raise LeaseLost(LeaseLost.__doc__) from None
    except AgentctlUnreachable as error:
        failure = start_failure_from(error, executor_failed=False)
        await _write_failure(registry, plan.session_id, plan.intent_id, stream.lease, failure)
        return
    except AgentctlRefused as error:
        await _handle_refusal(registry, stream, plan, error)
        return
    crash_points.reached("supervisor.agent_started", plan.session_id)
    won = await registry.database(agent_start.write_agent_started, plan, stream.lease, order, answer, known)
    crash_points.reached("supervisor.agent_start_written", plan.session_id)
    if won and order.injects:
        # Again, because the start has changed what is secret: the token of the conversation.
        await prepared_histories.prepare(registry.database, plan.session_id)
    if not won:
        # A stop was requested meanwhile and wins (rule 9), or the answer contradicts the log: the agent must not stay.
        await stream.client.stop_agent(grace=5, intent_id=str(plan.intent_id))
        await registry.database(settle_intent, plan.intent_id, "stopped")


async def _handle_refusal(
    registry: ExecutionRegistry, stream: ExecutionStream, plan: claims.StartClaim, error: AgentctlRefused
) -> None:
    if error.refusal == "already_running":  # an agent of an earlier start whose answer was lost
        report = await stream.client.status()
        if report["agent"]["state"] in agent_start.READY_AGENT_STATES:  # else it is starting, and may never be ready
            await registry.database(agent_start.write_reattached, plan, stream.lease, report)
            return
    failure = start_failure_from(error, executor_failed=False)
    await _write_failure(registry, plan.session_id, plan.intent_id, stream.lease, failure)


async def _write_failure(
    registry: ExecutionRegistry, session_id: uuid.UUID, intent_id: uuid.UUID, lease: Lease | None, failure: StartFailure
) -> None:
    """Write why a start failed, under the given lease or the one we hold now; without a lease, write nothing."""
    lease = lease or await registry.database(leases.get_lease, session_id, registry.boot_id)
    if lease is None:
        log.info("session %s: another supervisor writes the outcome of its start", session_id)
        return
    crash_points.reached("supervisor.start_failed", session_id)
    if await registry.database(is_last_start_attempt, session_id):
        failure = replace(failure, log_tail=await execution_registry.read_log_tail(registry, session_id))
    await registry.database(write_start_failure, session_id, intent_id, lease, failure)
    crash_points.reached("supervisor.start_failure_written", session_id)


WORKSPACE_TIMEOUT: Final = 20.0
"""Maximum seconds that a start waits for the list of interrupted work."""
MAX_LISTED: Final = 200
"""Maximum number of changed files, and of ended processes, that are stored; a prompt names fewer."""


async def record_interrupted_work(registry: ExecutionRegistry, stream: ExecutionStream, since: str | None) -> None:
    """Note for the next prompt which files an interrupted turn changed, and which processes ended with its agent.

    Call it before the next agent starts. ``since`` is the snapshot to compare with (empty: there is none), or None
    if nothing is unfinished. What agentctl does not return within ``WORKSPACE_TIMEOUT`` is left out.
    """
    if since is None:
        return
    client = stream.client
    changed: list[str] = []
    processes: list[str] = []
    try:
        async with asyncio.timeout(WORKSPACE_TIMEOUT):
            processes = await client.ended_with_agent()
            if since:
                changed = list((await client.git("changes", {"since": since})).get("files", ()))
            else:
                changed = []
    except (ExecutorError, TimeoutError) as error:
        log.info("session %s: not everything that its last turn left could be listed: %s", stream.session_id, error)
    await registry.database(
        _add_findings, stream.session_id, stream.lease, changed[:MAX_LISTED], processes[:MAX_LISTED]
    )


def _add_findings(session_id: uuid.UUID, lease: Lease, changed: list[str], processes: list[str]) -> None:
    with session_transaction(session_id, lease) as transaction:
        prompts.add_workspace_findings(transaction, changed, processes)
