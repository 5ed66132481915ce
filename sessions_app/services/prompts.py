"""What a user may do with a prompt of the ledger: send again, continue, dismiss, withdraw (rule 15)."""

from __future__ import annotations

import uuid
from typing import Any

from sessions_app.domain.states import PROMPT, PromptState
from sessions_app.models import Draft, Prompt, TaskSession, writing
from sessions_app.services.errors import Conflict, NotFound
from sessions_app.services.intents import wake
from sessions_app.services.retries import rest_after


def _locked(draft: Draft, message_id: str, *wanted: str) -> Prompt:
    row: Prompt | None = draft.session.prompts.select_for_update().filter(message_id=message_id).first()
    if row is None:
        raise NotFound("The session has no such prompt.")
    if row.state not in wanted:
        raise Conflict(f"This prompt is {row.state}.", state=row.state)
    return row


def resend(session_id: uuid.UUID, message_id: str, by: Any) -> Prompt:
    """A new ledger row with the text of a held or interrupted one, which is settled by it."""
    with writing(session_id) as draft:
        old = draft.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is not None and old.resent_as is not None:
            return old.resent_as
        old = _locked(draft, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        wake(draft, by)
        row = Prompt.objects.create(
            session=draft.session, message_id=str(uuid.uuid4()), text=old.text, kind=old.kind, by=by
        )
        draft.move_prompt(old, "dismiss", resent_as=row)
        draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def dismiss(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Settle a held or interrupted prompt without sending anything."""
    with writing(session_id) as draft:
        row: Prompt | None = draft.session.prompts.filter(message_id=message_id).first()
        if row is not None and row.state == PromptState.DISMISSED:
            return row
        row = _locked(draft, message_id, PromptState.HELD, PromptState.INTERRUPTED)
        draft.move_prompt(row, "dismiss")
    return row


def withdraw(session_id: uuid.UUID, message_id: str) -> Prompt:
    """Take a queued prompt back before it is sent."""
    with writing(session_id) as draft:
        row = _locked(draft, message_id, PromptState.QUEUED)
        draft.move_prompt(row, "withdraw")
        rest_after(draft, row)
    return row


def queue_length(session: TaskSession) -> int:
    """How many prompts wait for their turn."""
    return session.prompts.filter(state=PromptState.QUEUED).count()


def can_dismiss(row: Prompt) -> bool:
    """Whether *dismiss* and *send again* are offered for a prompt."""
    return PROMPT.allows(row.state, "dismiss")
