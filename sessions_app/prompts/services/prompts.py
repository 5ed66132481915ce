"""A user's actions on prompts: resend, continue, dismiss, withdraw."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import User

from sessions_app.agents.rules.agent_programs import LOGGED_OUT
from sessions_app.kernel.rules.states import DesiredState, PromptKind, PromptState, RunState, SessionState
from sessions_app.kernel.services.errors import Conflict, NotFound
from sessions_app.models import Prompt, SessionTransaction, Turn, session_transaction
from sessions_app.prompts.services import attachments, prompt_context
from sessions_app.sessions.services.intents import end_work_after_retry, prepare_for_prompt
from sessions_app.stream.models import has_called_tools_since
from sessions_app.turns.rules.continuation import Interruption, continue_prompt, retry_prompt


def _lock_prompt(transaction: SessionTransaction, message_id: str, *wanted: str) -> Prompt:
    row: Prompt | None = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
    if row is None:
        raise NotFound("The session has no such prompt.")
    if row.state not in wanted:
        raise Conflict(f"This prompt is {row.state}.", state=row.state)
    return row


def resend_prompt(session_id: uuid.UUID, message_id: str, by: User | None) -> Prompt:
    """Queue text and files of a held or interrupted prompt again as a new row, which settles the old one."""
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        # Repeating the request sends nothing twice: it returns the row that the first one created.
        if old is not None and old.resent_as is not None:
            return old.resent_as
        old = _lock_prompt(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        attachments.require_contents(old)
        prepare_for_prompt(transaction, by)
        row = Prompt.objects.create(
            session=transaction.session,
            message_id=str(uuid.uuid4()),
            text=old.text,
            attachments=old.attachments,
            kind=old.kind,
            by=by,
        )
        transaction.move_prompt(old, "dismiss", resent_as=row)
        transaction.record_queued(row)
    return row


def dismiss_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Settle a held or interrupted prompt without sending anything."""
    with session_transaction(session_id) as transaction:
        row: Prompt | None = transaction.session.prompts.filter(message_id=message_id).first()
        if row is not None and row.state == PromptState.DISMISSED:
            return row
        row = _lock_prompt(transaction, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        transaction.move_prompt(row, "dismiss")
    return row


def withdraw_prompt(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Withdraw a queued prompt before it is sent."""
    with session_transaction(session_id) as transaction:
        row = _lock_prompt(transaction, message_id, PromptState.QUEUED)
        transaction.move_prompt(row, "withdraw")
        end_work_after_retry(transaction, row)
    return row


def continue_interrupted(session_id: uuid.UUID, message_id: str, by: User) -> Prompt:
    """Queue a continue prompt for an interrupted one, which it settles; repeating this returns the same row.

    Raises NotFound, Conflict for a prompt that was not interrupted, and the errors of ``prepare_for_prompt``.
    """
    with session_transaction(session_id) as transaction:
        old = transaction.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is None:
            raise NotFound("The session has no such prompt.")
        # Repeating the request returns the row that the first one created.
        if old.continued_by is not None:
            return old.continued_by
        if old.state != PromptState.INTERRUPTED:
            raise Conflict(f"This prompt is {old.state}.", state=old.state)
        prepare_for_prompt(transaction, by)
        row = _create_continue_prompt(transaction, old, by)
        transaction.move_prompt(old, "dismiss", continued_by=row)
    return row


def _create_continue_prompt(transaction: SessionTransaction, old: Prompt, by: User) -> Prompt:
    """Create the continue prompt, named after the interrupted run, so that a run never gets a second one."""
    run = transaction.session.runs.filter(message_id=old.message_id).last()
    name = f"continue:{run.id if run else uuid.uuid4()}"
    known = prompt_context.unfinished_of(transaction.session)
    if known and known.get("message_id") == old.message_id:
        facts = prompt_context.to_interruption(transaction.session, known)
    else:  # an earlier turn, of which only the log is left
        facts = Interruption(
            transaction.session.task.title, old.text, _unfinished_tools(transaction, run) if run else ()
        )
    row, made = Prompt.objects.get_or_create(
        session=transaction.session,
        message_id=name,
        defaults={"text": continue_prompt(facts), "kind": PromptKind.CONTINUE, "by": by},
    )
    if made:
        transaction.record_queued(row)
    return row


def _unfinished_tools(transaction: SessionTransaction, run: Turn) -> list[str]:
    """Return the tools that were unfinished when the run was interrupted, from the log."""
    event = transaction.session.events.filter(once=f"run.interrupted:{run.id}").first()
    if event:
        return [str(title) for title in event.payload.get("unfinished_tools", ())]
    return []


def resend_after_login(session_id: uuid.UUID, by: User | None) -> bool:
    """Queue the prompt of the last turn again, which failed because the agent was not logged in.

    Returns False if there is no such turn, if its prompt was sent again before, or if the session is stopped or over.
    Raises what ``prepare_for_prompt`` and ``attachments.require_contents`` raise.
    """
    with session_transaction(session_id, related=("task",)) as transaction:
        session, run = transaction.session, transaction.newest_run
        if run is None or run.state != RunState.FAILED or run.reason != LOGGED_OUT or session.task.end:
            return False
        if session.state != SessionState.WAITING_FOR_INPUT or session.desired_state != DesiredState.RUNNING:
            return False
        failed = session.prompts.select_for_update().filter(message_id=run.message_id).first()
        if failed is None or failed.resent_as is not None or failed.kind == PromptKind.CHECK:
            return False
        attachments.require_contents(failed)
        prepare_for_prompt(transaction, by)
        text = _text_after_login(run, failed)
        failed.resent_as = transaction.queue_prompt(
            f"login:{run.id}",
            text,
            kind=PromptKind.RETRY,
            by=by,
            attachments=failed.attachments if text == failed.text else [],
            attempt=failed.attempt + 1,
            trouble=LOGGED_OUT,
        )
        failed.save(update_fields=["resent_as", "updated_at"])
    return True


def _text_after_login(turn: Turn, failed: Prompt) -> str:
    """Return the prompt itself, or a continuation of it if the agent had begun to use tools before it was refused."""
    if not has_called_tools_since(turn) or failed.kind == PromptKind.RETRY:
        return failed.text
    told_so_far = Interruption(turn.session.task.title, failed.text, ())
    return retry_prompt(told_so_far, "The agent was no longer logged in.")
