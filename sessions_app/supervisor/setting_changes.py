"""Pass the changes of settings on to agents: with a start, or at once to an agent that is up."""

from __future__ import annotations

from typing import Any

from executors_app import crash_points
from executors_app.agentctl.agent_settings import REASON_LIMIT, clean_text
from executors_app.agentctl.protocol import Code
from executors_app.errors import AgentctlRefused, AgentctlUnreachable, StaleGeneration
from sessions_app.models import Intent, IntentKind, SessionTransaction, TaskSession, session_transaction
from sessions_app.models.agents import WAITING, agent_settings_of, settle_change
from sessions_app.services.intents import create_intent
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.outcomes import settle_intent

_WITH_THE_NEXT_START = "next_start"
"""Outcome of an intent whose agent is gone: the change waits for the next start."""
_UNSUPPORTED_REASON = "This agent’s settings cannot be changed here."


def changes_to_start_with(session: TaskSession) -> list[dict[str, Any]]:
    """Return the changes that a start applies before the agent takes prompts, in order."""
    row = agent_settings_of(session)
    return [] if row is None else row.changes_to_start_with()


def order_waiting_changes(transaction: SessionTransaction) -> None:
    """Order the changes that were asked for while the agent started; one that the start applied is sent for nothing."""
    row = agent_settings_of(transaction.session)
    for change in [] if row is None else row.waiting_changes():
        open_ones = transaction.session.intents.filter(kind=IntentKind.SETTING, done_at=None)
        if not open_ones.filter(payload__change_id=change["change_id"]).exists():
            create_intent(transaction.session, IntentKind.SETTING, None, change)


async def send_change(registry: ExecutionRegistry, intent: Intent) -> bool:
    """Send a change to the agent; return False if it stays open for another try. Its outcome is a journal line.

    agentctl knows a change by its id, so sending it again after a crash changes nothing.
    """
    stream = registry.stream_of(intent.session_id)
    outcome = await registry.database(outcome_without_sending, intent, stream is None)
    if outcome is None and stream is not None:
        change = intent.payload
        try:
            await stream.client.change_setting(change["change_id"], change["setting"], change["value"])
            crash_points.reached("supervisor.setting_sent", intent.session_id)
            outcome = "done"
        except (AgentctlUnreachable, StaleGeneration):
            return False
        except AgentctlRefused as error:
            outcome = await registry.database(handle_refusal, intent, error)
    if outcome is None:
        return False
    await registry.database(settle_intent, intent.id, outcome)
    registry.on_change(intent.session_id)  # a prompt may have waited for it
    return True


def outcome_without_sending(intent: Intent, is_detached: bool) -> str | None:
    """Return the outcome of an intent that need not be sent; None if it must be."""
    session = TaskSession.objects.get(id=intent.session_id)
    row = agent_settings_of(session)
    change = {} if row is None else row.change_of(intent.payload["setting"])
    if change.get("id") != intent.payload["change_id"] or change.get("state") != WAITING:
        return "superseded"
    return _WITH_THE_NEXT_START if is_detached and not session.launch_id else None


def handle_refusal(intent: Intent, error: AgentctlRefused) -> str:
    """Return the outcome after agentctl refused to pass a change on; without an agent, its next start applies it."""
    if error.refusal == Code.NOT_RUNNING:
        return _WITH_THE_NEXT_START
    known = error.refusal in (Code.NOT_FOUND, Code.SETTINGS_UNSUPPORTED)
    reason = _UNSUPPORTED_REASON if known else clean_text(error.message, REASON_LIMIT)
    with session_transaction(intent.session_id) as transaction:
        row = agent_settings_of(transaction.session)
        about = (intent.payload["setting"], intent.payload["change_id"])
        code = Code.SETTINGS_UNSUPPORTED if known else error.refusal
        if row is not None and settle_change(transaction, row, *about, code=code, reason=reason):
            row.save(update_fields=["chosen", "updated_at"])
    return str(error.refusal)
