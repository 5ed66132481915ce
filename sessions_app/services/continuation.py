"""Going on with an interrupted prompt because a user asks for it (rules 15 and 16)."""

from __future__ import annotations

import uuid
from typing import Any

from sessions_app.domain.continuation import Interruption, continue_prompt
from sessions_app.domain.states import PromptState
from sessions_app.models import Draft, Prompt, Run, writing
from sessions_app.services import unfinished
from sessions_app.services.errors import Conflict, NotFound
from sessions_app.services.intents import wake


def continue_interrupted(session_id: uuid.UUID, message_id: str, by: Any) -> Prompt:
    """A new ledger row in the system's words, which settles the interrupted one; the same again gives the first.

    Raises NotFound, Conflict for a prompt that was not interrupted, and whatever refuses a start.
    """
    with writing(session_id) as draft:
        old = draft.session.prompts.select_for_update().filter(message_id=message_id).first()
        if old is None:
            raise NotFound("The session has no such prompt.")
        if old.continued_by is not None:
            return old.continued_by
        if old.state != PromptState.INTERRUPTED:
            raise Conflict(f"This prompt is {old.state}.", state=old.state)
        wake(draft, by)
        row = _new_row(draft, old, by)
        draft.move_prompt(old, "dismiss", continued_by=row)
    return row


def _new_row(draft: Draft, old: Prompt, by: Any) -> Prompt:
    """Named after the interrupted run, so that nobody makes a second one for it."""
    run = draft.session.runs.filter(message_id=old.message_id).last()
    name = f"continue:{run.id if run else uuid.uuid4()}"
    known = unfinished.of(draft.session)
    if known and known.get("message_id") == old.message_id:
        facts = unfinished.interruption_of(draft.session, known)
    else:  # of an earlier turn, of which no more is known than the log has
        facts = Interruption(draft.session.task.title, old.text, _unfinished_tools(draft, run) if run else ())
    row, made = Prompt.objects.get_or_create(
        session=draft.session,
        message_id=name,
        defaults={"text": continue_prompt(facts), "kind": "continue", "by": by},
    )
    if made:
        draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def _unfinished_tools(draft: Draft, run: Run) -> list[str]:
    """What the log says of the run's end."""
    said = draft.session.events.filter(once=f"run.interrupted:{run.id}").first()
    return [str(title) for title in said.payload.get("unfinished_tools", ())] if said else []
