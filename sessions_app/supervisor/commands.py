"""Carrying out the orders that overtake: answer, cancel, stop, close (rule 9)."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from django.db import InterfaceError, OperationalError

from executors_app import crash_points
from executors_app.errors import AgentctlRefused, AgentctlUnreachable, ExecutorError, StaleGeneration
from executors_app.models import ExecutorRunning
from executors_app.plugins import runtime
from sessions_app.models import Intent, IntentKind, Lease, LeaseLost
from sessions_app.supervisor import leases
from sessions_app.supervisor.core import Core
from sessions_app.supervisor.rows import execution_facts
from sessions_app.supervisor.start.outcomes import settle, write_stopped

log = logging.getLogger(__name__)


async def carry_out(core: Core, intent: Intent) -> bool:
    """Carry out one order; False when it has to wait for another try."""
    try:
        if intent.kind in (IntentKind.STOP, IntentKind.CLOSE):
            return await _stop(core, intent)
        return await _command(core, intent)
    except LeaseLost:
        return False
    except (OperationalError, InterfaceError) as error:  # the database's trouble: the order stays, to be tried again
        log.warning("%s could not be carried out: %s", intent, error)
        return False
    except Exception:  # one bad session never stops the others
        log.exception("%s could not be carried out", intent)
        await core.database(settle, intent.id, "internal_error")
        return True


async def _command(core: Core, intent: Intent) -> bool:
    """An answer or a cancel: given to agentctl, which remembers it; its journal tells the rest."""
    attachment = core.attached(intent.session_id)
    if attachment is None:
        pointless = await core.database(_pointless, intent)
        if pointless:
            await core.database(settle, intent.id, "too_late")
        return pointless
    try:
        if intent.kind == IntentKind.ANSWER:
            await attachment.client.answer(intent.payload["permission_id"], intent.payload["option_id"])
            crash_points.reached("supervisor.answer_sent", intent.session_id)
        else:
            await attachment.client.cancel(intent.payload["message_id"], str(intent.id))
            crash_points.reached("supervisor.cancel_sent", intent.session_id)
    except (AgentctlUnreachable, StaleGeneration):
        return False
    except AgentctlRefused as error:
        await core.database(settle, intent.id, error.refusal)
        return True
    await core.database(settle, intent.id, "done")
    return True


def _pointless(intent: Intent) -> bool:
    """What the order is about has ended."""
    if intent.kind == IntentKind.ANSWER:
        asked = intent.session.permissions.filter(id=intent.payload.get("permission_id"))
        return not asked.filter(state="pending").exists()
    run = intent.session.runs.filter(message_id=intent.payload.get("message_id"))
    return not run.filter(state__in=("running", "waiting")).exists()


async def _stop(core: Core, intent: Intent) -> bool:
    """End the execution: politely, and by proof of ownership where it is silent (rules, section 7)."""
    lease = await core.database(_lease, intent.session_id, core.boot_id)
    if lease is None:
        return False
    facts = await core.database(execution_facts, intent.session_id)
    if facts is not None and facts.agentctl_url:
        await _ask_to_end(core, intent)
        crash_points.reached("supervisor.stop_sent", intent.session_id)
        await core.detach(intent.session_id)
        if not await runtime(facts.runtime).end(facts):
            log.warning("session %s: something of it could not be ended", intent.session_id)
            return False
        crash_points.reached("supervisor.execution_ended", intent.session_id)
    close_as: str = intent.payload.get("as", "")
    reason = "closed" if close_as else str(intent.payload.get("reason") or "stopped")
    await core.database(write_stopped, intent.session_id, lease, reason, close_as)
    crash_points.reached("supervisor.stop_written", intent.session_id)
    await core.database(settle, intent.id, reason)
    crash_points.reached("supervisor.stop_settled", intent.session_id)
    if facts is not None:
        await core.database(leases.release, core.boot_id, uuid.UUID(facts.id))
    core.on_change(intent.session_id)  # a start may have waited for this end
    return True


async def _ask_to_end(core: Core, intent: Intent) -> None:
    """Let agentctl end its agent and itself; its last lines come over the stream first."""
    attachment: Any = core.attached(intent.session_id)
    try:
        attachment = attachment or await core.attach(intent.session_id)
        if attachment is None:
            return
        await attachment.client.stop_agent(grace=5, intent_id=str(intent.id))
        crash_points.reached("supervisor.agent_stopped", intent.session_id)
        report = await attachment.client.status()
        await attachment.reach(report["journal"]["epoch"], report["journal"]["last_seq"], timeout=5)
        await attachment.client.shutdown(stop_agent=True, intent_id=str(intent.id))
    except ExecutorError as error:
        log.info("session %s does not end by itself: %s", intent.session_id, error.message)


def _lease(session_id: uuid.UUID, me: str) -> Lease | None:
    execution = ExecutorRunning.objects.filter(session_id=session_id).order_by("-created_at").first()
    return leases.acquire(execution.id, me) if execution else None
