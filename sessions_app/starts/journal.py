"""What journal lines about the end of an agent, or of its agentctl, change."""

from __future__ import annotations

from sessions_app.starts.events import AgentctlAbandoned, AgentExited
from sessions_app.stream.conversation import JournalLine, JournalUpdate
from sessions_app.turns.interruptions import (
    interrupt_turn,
    record_agent_death,
    record_agent_stopped,
    reset_attempts_if_stable,
)


def end_agent(update: JournalUpdate, line: JournalLine) -> None:
    """Write that the agent process has ended: interrupt its turn, and mark the session as without an agent."""
    transaction, was_requested = update.transaction, bool(line.get("expected"))
    is_present = line.get("launch_id") in (None, transaction.session.launch_id)
    if is_present:  # the end of an earlier agent does not concern the one that is running
        reset_attempts_if_stable(transaction, until=transaction.at)
    interrupt_turn(transaction, "agent_exited", update.conversation, is_present=is_present)
    if is_present and was_requested:
        record_agent_stopped(transaction)
    elif is_present:
        record_agent_death(transaction)
    transaction.record_event(AgentExited(exit_code=line.get("exit_code"), expected=was_requested))
    update.agent_gone = update.agent_gone or not was_requested


def abandon(update: JournalUpdate, line: JournalLine) -> None:
    """Record that agentctl has ended because no control plane had called it for days."""
    update.transaction.record_event(AgentctlAbandoned())
