"""What a user may do with a prompt: resend, continue, dismiss, withdraw."""

from __future__ import annotations

import uuid
from typing import Any

from sessions_app.domain.continuation import Interruption, continue_prompt
from sessions_app.domain.states import PROMPT, PromptKind, PromptState
from sessions_app.models import Prompt, Run, SessionTransaction, TaskSession, session_transaction
from sessions_app.services import prompt_context
from sessions_app.services.errors import Conflict, NotFound
from sessions_app.services.intents import prepare_for_prompt
from sessions_app.services.turn_retries import end_work_after_retry


def _locked(transaction: SessionTransaction, message_id: str, *wanted: str) -> Prompt:
    row: Prompt | None = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
    if row is None:
        raise NotFound("The session has no such prompt.")
    if row.state not in wanted:
        raise Conflict(f"This prompt is {row.state}.", state=row.state)
    return row


def resend_prompt(session_id: uuid.UUID, message_id: str, by: Any) -> Prompt:
    """A new ledger row with the text of a held or interrupted one, which is settled by it."""
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is not None and old.resent_as is not None:
            return old.resent_as
        old = _locked(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        prepare_for_prompt(transaction, by)
        row = Prompt.objects.create(
            session=transaction.session, message_id=str(uuid.uuid4()), text=old.text, kind=old.kind, by=by
        )
        transaction.move_prompt(old, "dismiss", resent_as=row)
        transaction.record_event("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def dismiss_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Settle a held or interrupted prompt without sending anything."""
    with session_transaction(session_id) as transaction:
        row: Prompt | None = transaction.session.prompts.filter(message_id=message_id).first()
        if row is not None and row.state == PromptState.DISMISSED:
            return row
        row = _locked(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        transaction.move_prompt(row, "dismiss")
    return row


def withdraw_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Take a queued prompt back before it is sent."""
    with session_transaction(session_id) as transaction:
        row = _locked(transaction, message_id, PromptState.QUEUED)
        transaction.move_prompt(row, "withdraw")
        end_work_after_retry(transaction, row)
    return row


def count_queued(session: TaskSession) -> int:
    """How many prompts wait for their turn."""
    return session.prompts.filter(state=PromptState.QUEUED).count()


def can_dismiss(row: Prompt) -> bool:
    """Whether *dismiss* and *send again* are offered for a prompt."""
    return PROMPT.allows(row.state, "dismiss")


def continue_interrupted(session_id: uuid.UUID, message_id: str, by: Any) -> Prompt:
    """A new ledger row in the system's words, which settles the interrupted one; the same again gives the first.

    Raises NotFound, Conflict for a prompt that was not interrupted, and whatever refuses a start.
    """
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is None:
            raise NotFound("The session has no such prompt.")
        if old.continued_by is not None:
            return old.continued_by
        if old.state != PromptState.INTERRUPTED:
            raise Conflict(f"This prompt is {old.state}.", state=old.state)
        prepare_for_prompt(transaction, by)
        row = _create_continue_prompt(transaction, old, by)
        transaction.move_prompt(old, "dismiss", continued_by=row)
    return row


def _create_continue_prompt(transaction: SessionTransaction, old: Prompt, by: Any) -> Prompt:
    """Named after the interrupted run, so that nobody makes a second one for it."""
    run = transaction.session.runs.filter(message_id=old.message_id).last()
    name = f"continue:{run.id if run else uuid.uuid4()}"
    known = prompt_context.unfinished_of(transaction.session)
    if known and known.get("message_id") == old.message_id:
        facts = prompt_context.to_interruption(transaction.session, known)
    else:  # of an earlier turn, of which no more is known than the log has
        facts = Interruption(
            transaction.session.task.title, old.text, _unfinished_tools(transaction, run) if run else ()
        )
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=name,
        defaults={"text": continue_prompt(facts), "kind": PromptKind.CONTINUE, "by": by},
    )
    if made:
        transaction.record_event("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def _unfinished_tools(transaction: SessionTransaction, run: Run) -> list[str]:
    """What the log says of the run's end."""
    said = transaction.session.events.filter(once=f"run.interrupted:{run.id}").first()
    return [str(title) for title in said.payload.get("unfinished_tools", ())] if said else []
