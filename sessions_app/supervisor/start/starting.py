"""Carrying out a start: workspace, agentctl, stream, agent. Every step may be done again after a crash."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError

from executors_app import crash_points
from executors_app.domain import Launched
from executors_app.errors import (
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    StaleGeneration,
)
from executors_app.plugins import runtime
from executors_app.runtimes import SharesWorktrees
from sessions_app.models import Lease, LeaseLost
from sessions_app.supervisor import leases
from sessions_app.supervisor.attachment import Attachment
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.start import aftermath, agent_order, log_tail, planning
from sessions_app.supervisor.start.at_once import claim_and_prepare
from sessions_app.supervisor.start.outcomes import Failure, failure_of, is_last_try, settle, write_failure

log = logging.getLogger(__name__)
OWN_LIMIT = 10
"""Seconds by which our own limit outlives the one that agentctl was told."""


async def carry_out(core: Core, session_id: uuid.UUID, intent_id: uuid.UUID) -> None:
    """Carry out one start order; returns when it is done, or left to whoever holds the lease."""
    async with core.starts:
        try:
            async with asyncio.timeout(settings.KANDEV_START_TIMEOUT):
                await _start(core, session_id, intent_id)
        except LeaseLost:
            log.info("session %s: another supervisor carries out its start", session_id)
        except TimeoutError:
            failure = Failure("start_timeout", f"The start took longer than {settings.KANDEV_START_TIMEOUT:g} seconds.")
            await _write_failure(core, session_id, intent_id, None, failure)
        except ExecutorError as error:
            await _write_failure(core, session_id, intent_id, None, failure_of(error, executor_failed=False))
        except (
            OperationalError,
            InterfaceError,
        ) as error:  # the database's trouble: the order stays, to be tried again
            log.warning("session %s: its start could not be written: %s", session_id, error)
        except Exception as error:  # one bad session never stops the others
            log.exception("session %s: its start failed", session_id)
            failure = Failure("internal_error", f"The start failed: {type(error).__name__}")
            await _write_failure(core, session_id, intent_id, None, failure)


async def _start(core: Core, session_id: uuid.UUID, intent_id: uuid.UUID) -> None:
    live = core.attached(session_id)
    if live is not None:
        await _start_beside(core, live, intent_id)
        return
    in_grace = core.grace.holds_for(session_id)
    plan = await core.database(planning.claim, session_id, intent_id, core.boot_id, lives=None, in_grace=in_grace)
    if plan is None:
        return
    core.grace.used_by(session_id)
    crash_points.reached("supervisor.start_claimed", session_id)
    try:
        attachment = await _launch(core, plan)
    except (AgentctlUnreachable, AgentctlRefused, LaunchFailed, ExecutorError) as error:
        failure = failure_of(error, executor_failed=True)
        await _write_failure(core, session_id, intent_id, plan.lease, failure)
        return
    if attachment is None:
        return  # somebody else took it over
    await _open_agent(core, attachment, plan)


async def _start_beside(core: Core, live: Attachment, intent_id: uuid.UUID) -> None:
    """Start an agent where agentctl is up."""
    claimed = await core.database(
        claim_and_prepare,
        live.session_id,
        intent_id,
        live.lease,
        lives=live.found_launch,
        found=live.found_launch if live.found_agent else None,
        in_grace=core.grace.holds_for(live.session_id),
    )
    if claimed is None:
        return
    core.grace.used_by(live.session_id)
    plan, order = claimed
    crash_points.reached("supervisor.start_claimed", live.session_id)
    if order is not None:
        await _open_prepared(core, live, plan, order)


async def _launch(core: Core, plan: planning.Plan) -> Attachment | None:
    place = runtime(plan.facts.runtime)
    if plan.spec.worktree_id and not isinstance(place, SharesWorktrees):
        raise LaunchFailed(f"Sessions on {place.name} cannot share a worktree.")
    await place.end_leftovers(plan.facts) if plan.leftovers else None
    launched: Launched = await place.launch(plan.spec)
    crash_points.reached("supervisor.launched", plan.session_id)
    kept = await core.database(planning.write_launched, plan, launched)
    crash_points.reached("supervisor.launch_written", plan.session_id)
    if not kept:
        await _undo(core, plan, launched)
        return None
    return await core.attach(plan.session_id)


async def _undo(core: Core, plan: planning.Plan, launched: Launched) -> None:
    """Somebody stopped the session while it was being launched: shut down what was started (rule 9)."""
    facts = await core.database(planning.facts_with, plan.session_id, launched)
    await runtime(plan.facts.runtime).end(facts)
    await core.database(settle, plan.intent_id, "stopped")


async def _open_agent(core: Core, attachment: Attachment, plan: planning.Plan) -> None:
    """Start the agent with the strategy that the one opinion names, or leave it at the workspace."""
    found = attachment.found_launch if attachment.found_agent else None
    order = await core.database(agent_order.prepare, plan, attachment.lease, found=found)
    if order is not None:
        await _open_prepared(core, attachment, plan, order)


async def _open_prepared(
    core: Core, attachment: Attachment, plan: planning.Plan, order: agent_order.AgentOrder
) -> None:
    crash_points.reached("supervisor.agent_prepared", plan.session_id)
    await aftermath.look(core, attachment, order.unfinished_since)
    with attachment.starting():
        await _start_agent(core, attachment, plan, order)


async def _start_agent(core: Core, attachment: Attachment, plan: planning.Plan, order: agent_order.AgentOrder) -> None:
    """Have the agent started and write what came of it; what it is judged by is read meanwhile."""
    try:
        answer, known = await asyncio.gather(_ask(attachment, order), core.database(agent_order.known, plan.session_id))
    except StaleGeneration:
        raise LeaseLost(LeaseLost.__doc__) from None
    except AgentctlUnreachable as error:
        failure = failure_of(error, executor_failed=False)
        await _write_failure(core, plan.session_id, plan.intent_id, attachment.lease, failure)
        return
    except AgentctlRefused as error:
        await _refused(core, attachment, plan, error)
        return
    crash_points.reached("supervisor.agent_started", plan.session_id)
    won = await core.database(agent_order.write_started, plan, attachment.lease, order, answer, known)
    crash_points.reached("supervisor.agent_start_written", plan.session_id)
    if not won:
        await attachment.client.stop_agent(grace=5, intent_id=str(plan.intent_id))
        await core.database(settle, plan.intent_id, "stopped")


async def _ask(attachment: Attachment, order: agent_order.AgentOrder) -> dict[str, Any]:
    timeout = settings.KANDEV_START_TIMEOUT + OWN_LIMIT
    return await attachment.client.start_agent(order.body, timeout=timeout)


async def _refused(core: Core, attachment: Attachment, plan: planning.Plan, error: AgentctlRefused) -> None:
    if error.refusal == "already_running":  # an agent of an earlier start, whose answer was lost
        report = await attachment.client.status()
        if report["agent"]["state"] in agent_order.UP:  # else it is still starting, and may never be up
            await core.database(agent_order.write_reattached, plan, attachment.lease, report)
            return
    failure = failure_of(error, executor_failed=False)
    await _write_failure(core, plan.session_id, plan.intent_id, attachment.lease, failure)


async def _write_failure(
    core: Core, session_id: uuid.UUID, intent_id: uuid.UUID, lease: Lease | None, failure: Failure
) -> None:
    """Under the lease that is ours by now; whoever has lost it has nothing to say."""
    lease = lease or await core.database(leases.held, session_id, core.boot_id)
    if lease is None:
        log.info("session %s: another supervisor says what becomes of its start", session_id)
        return
    crash_points.reached("supervisor.start_failed", session_id)
    if await core.database(is_last_try, session_id):
        failure = replace(failure, log_tail=await log_tail.of_session(core, session_id))
    await core.database(write_failure, session_id, intent_id, lease, failure)
    crash_points.reached("supervisor.start_failure_written", session_id)
