"""Turns that a passing error of the model's provider has failed: tried again, after a pause that a restart survives.

The try again is a row of the ledger, made in the transaction that writes down the failure. Nothing is
delivered twice by it: the agent has answered the prompt before, with the error.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.utils import timezone

from sessions_app.domain import transient
from sessions_app.domain.continuation import Interruption, retry_prompt
from sessions_app.domain.recovery import FUTURE
from sessions_app.domain.states import SESSION, DesiredState, PromptState
from sessions_app.models import Draft, IntentKind, Prompt, Run
from sessions_app.services.agent_programs import explained
from sessions_app.supervisor.ingest.conversation import Conversation

MESSAGE_CHARS = 4000
"""Of the provider's own words that are kept."""


def plan_retry(
    draft: Draft,
    run: Run,
    failed: Prompt | None,
    line: Mapping[str, Any],
    *,
    talk: Conversation,
    tools: Sequence[str],
) -> Prompt | None:
    """Queue another try of the turn that ``line`` has ended, if its error passes; None where it is final.

    Once for each run; ``tools`` are its tool calls without a result. None is made after a user's cancel or
    stop, or when all tries are used up.
    """
    message = str(line.get("message") or "")[:MESSAGE_CHARS]
    trouble = transient.trouble_of(str(line.get("code") or ""), message)
    if trouble is None or failed is None or not _may_go_on(draft, run, failed):
        return None
    attempt = failed.attempt + 1
    row = Prompt.objects.create(
        session=draft.session,
        message_id=f"retry:{run.id}",
        kind="retry",
        text=_text(draft, failed, trouble, talk, tools),
        attempt=attempt,
        not_before=timezone.now() + transient.pause(attempt, message),
        trouble=trouble,
        trouble_message=message,
    )
    failed.resent_as = row
    failed.save(update_fields=["resent_as", "updated_at"])
    draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def say_failure(draft: Draft, talk: Conversation, line: Mapping[str, Any], retry: Prompt | None) -> None:
    """Show in the conversation why a turn has failed, and what is done about it."""
    said = str(line.get("message") or "The turn failed.")
    message = explained(draft.session, str(line.get("code") or ""), said)
    if retry is None:
        talk.add("status", message, level="error")
    else:
        talk.add("status", f"{message}\n{_say_when(draft, retry)}", level="warning")


def _say_when(draft: Draft, row: Prompt) -> str:
    of = settings.KANDEV_TURN_RETRIES
    draft.say(
        "session.run.retrying",
        message_id=row.message_id,
        attempt=row.attempt,
        of=of,
        at=row.not_before.isoformat() if row.not_before else None,
        error_code=row.trouble,
        error_message=row.trouble_message,
    )
    return transient.Retry(row.trouble, row.trouble_message, row.attempt, of, row.not_before).said


def _may_go_on(draft: Draft, run: Run, failed: Prompt) -> bool:
    session = draft.session
    wanted = session.desired_state == DesiredState.RUNNING and SESSION.allows(session.state, "turn_ended")
    cancelled = session.intents.filter(kind=IntentKind.CANCEL, payload__message_id=run.message_id).exists()
    return wanted and not cancelled and failed.attempt < settings.KANDEV_TURN_RETRIES


def _text(draft: Draft, failed: Prompt, trouble: str, talk: Conversation, tools: Sequence[str]) -> str:
    """The request once more; in the system's words where the agent has begun to act on it."""
    first = _first_of(failed)
    if not talk.called_tools_since(first.message_id):
        return first.text
    told = Interruption(draft.session.task.title, first.text, tools)
    return retry_prompt(told, transient.WORDS[trouble])


def _first_of(row: Prompt) -> Prompt:
    """The prompt that all these tries are of."""
    while row.kind == "retry" and (earlier := Prompt.objects.filter(resent_as=row).first()) is not None:
        row = earlier
    return row


def is_due(row: Prompt) -> bool:
    """Whether a prompt may be sent; one that a wrong clock has put off for ever may."""
    now = timezone.now()
    return row.not_before is None or not now < row.not_before <= now + FUTURE


def due_retries() -> frozenset[uuid.UUID]:
    """Sessions with a try again whose time has come and that nobody has sent yet."""
    waiting = Prompt.objects.filter(state=PromptState.QUEUED, not_before__isnull=False)
    return frozenset(row.session_id for row in waiting if is_due(row))
