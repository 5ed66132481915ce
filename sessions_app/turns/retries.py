"""Turns that failed: why, and when a turn is tried again that a passing error of a model's provider has ended."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.utils import timezone

from executors_app.agent_capabilities import own_title_in_team
from executors_app.plugins import UnknownPlugin, agent_type
from executors_app.wire.protocol import Code
from sessions_app.agents.rules.agent_programs import EXPLAINED_CODES, explain_program_error
from sessions_app.kernel.rules.states import (
    SESSION,
    DesiredState,
    PromptKind,
    PromptState,
)
from sessions_app.kernel.rules.wording import iso_time
from sessions_app.models import (
    Prompt,
    SessionTransaction,
    TaskSession,
    Turn,
    newest_turn_of,
)
from sessions_app.stream.conversation import ConversationUpdate
from sessions_app.turns.events import RunRetrying
from sessions_app.turns.models import was_cancelled
from sessions_app.turns.rules import transient_errors
from sessions_app.turns.rules.agent_turns import MAX_REFUSALS, refusal_delay
from sessions_app.turns.rules.continuation import Interruption, retry_prompt

MESSAGE_CHARS = 4000
"""Characters of the provider's error message that are stored."""


def plan_retry(
    transaction: SessionTransaction,
    run: Turn,
    failed: Prompt | None,
    line: Mapping[str, Any],
    *,
    conversation: ConversationUpdate,
    tools: Sequence[str],
) -> Prompt | None:
    """Queue a retry of the turn that ``line`` has ended, if its error is transient; return it, or None.

    ``tools`` are the titles of the turn's tool calls without a result. There is no retry after a user's cancel or
    stop, nor when all ``KANDEV_TURN_RETRIES`` are used up.
    """
    message = str(line.get("message") or "")[:MESSAGE_CHARS]
    if line.get("code") == Code.AGENT_BUSY:
        return _plan_after_refusal(transaction, run, failed, message)
    trouble = transient_errors.transient_trouble(str(line.get("code") or ""), message)
    if trouble is None or failed is None or not _may_retry(transaction, run, failed):
        return None
    attempt, first = failed.attempt + 1, _first_attempt(failed)
    began: Turn | None = run
    if first is not failed:
        began = newest_turn_of(transaction.session.id, first.message_id)
    text, files = first.text, first.attachments
    if began is None or conversation.has_called_tools_since(began):
        text, files = _retry_text(transaction, first, trouble, tools), []
    row = transaction.add_prompt(
        f"retry:{run.id}",
        text,
        kind=PromptKind.RETRY,
        attachments=files,
        attempt=attempt,
        not_before=timezone.now() + transient_errors.retry_delay(attempt, message),
        trouble=trouble,
        trouble_message=message,
    )
    failed.resent_as = row
    failed.save(update_fields=["resent_as", "updated_at"])
    return row


def find_outage(
    transaction: SessionTransaction, run: Turn, failed: Prompt | None, line: Mapping[str, Any]
) -> transient_errors.ProviderTrouble | None:
    """Return the error of the provider that has ended ``run`` and has outlasted all retries; None for another end.

    None after a user's cancel or stop, too.
    """
    if failed is None or not _is_wanted(transaction.session, run) or failed.attempt < settings.KANDEV_TURN_RETRIES:
        return None
    return transient_errors.transient_trouble(str(line.get("code") or ""), str(line.get("message") or ""))


def explain_failure(session: TaskSession, code: str, message: str) -> str:
    """Explain to people a start or turn that failed with ``code``; ``message`` if there is nothing to add."""
    if code not in EXPLAINED_CODES:
        return message
    profile = session.agent_profile
    try:
        kind = agent_type(profile.agent_type)
    except UnknownPlugin:
        return message
    place = session.executor
    program = next(iter(profile.argv(place.runtime)), "")
    kind = replace(kind, title=own_title_in_team(profile, session.task.team_id))
    return explain_program_error(code, message, kind=kind, program=program, profile=profile.name, executor=place.name)


def record_turn_failure(
    transaction: SessionTransaction, conversation: ConversationUpdate, line: Mapping[str, Any], retry: Prompt | None
) -> None:
    """Add a message to the conversation about why a turn failed, and when it is retried."""
    reported = str(line.get("message") or "The turn failed.")
    if line.get("code") == Code.AGENT_BUSY:
        _record_refusal(conversation, reported, retry)
        return
    message = explain_failure(transaction.session, str(line.get("code") or ""), reported)
    if retry is None:
        conversation.add_message("status", message, level="error")
    else:
        conversation.add_message("status", f"{message}\n{_record_retry_time(transaction, retry)}", level="warning")


def _record_refusal(conversation: ConversationUpdate, reported: str, again: Prompt | None) -> None:
    """Say that the agent has not taken a prompt; once, although it may refuse the prompt several times."""
    if again is None:
        text = f"The agent did not take this prompt, because it is busy with something else: {reported}"
        conversation.add_message("status", text, level="error")
    elif _count_refusals(again) == 1:
        sentence = transient_errors.Retry(again.trouble, reported, again.attempt, 0, None).sentence
        conversation.add_message("status", f"{sentence} It says: {reported}", level="warning")


def _record_retry_time(transaction: SessionTransaction, row: Prompt) -> str:
    of = settings.KANDEV_TURN_RETRIES
    transaction.record_event(
        RunRetrying(
            message_id=row.message_id,
            attempt=row.attempt,
            of=of,
            at=iso_time(row.not_before),
            error_code=row.trouble,
            error_message=row.trouble_message,
        )
    )
    return transient_errors.Retry(row.trouble, row.trouble_message, row.attempt, of, row.not_before).sentence


def _may_retry(transaction: SessionTransaction, run: Turn, failed: Prompt) -> bool:
    session = transaction.session
    return _is_wanted(session, run) and failed.attempt < settings.KANDEV_TURN_RETRIES


def _is_wanted(session: TaskSession, run: Turn) -> bool:
    """Whether nobody has stopped the session or cancelled the turn."""
    wanted = session.desired_state == DesiredState.RUNNING and SESSION.allows(session.state, "turn_ended")
    return wanted and not was_cancelled(run)


def _plan_after_refusal(
    transaction: SessionTransaction, run: Turn, refused: Prompt | None, message: str
) -> Prompt | None:
    """Queue a prompt again that its agent refused because it works on something of its own.

    agentctl reports such a refusal only if nothing shows that the agent has begun with the prompt. As every repeated
    prompt, it is a new row with an id of its own, which settles the old one: no id is ever sent again.
    """
    if refused is None or refused.kind == PromptKind.CHECK or not _is_wanted(transaction.session, run):
        return None  # the next start queues another memory check
    refusals = _count_refusals(refused)
    if refusals >= MAX_REFUSALS:
        return None
    row = transaction.add_prompt(
        f"retry:{run.id}",
        refused.text,
        kind=PromptKind.RETRY,
        by=refused.by,
        attachments=refused.attachments,
        attempt=refused.attempt,
        not_before=timezone.now() + refusal_delay(refusals),
        trouble=Code.AGENT_BUSY,
        trouble_message=message,
    )
    refused.resent_as = row
    refused.save(update_fields=["resent_as", "updated_at"])
    return row


def _count_refusals(row: Prompt) -> int:
    """Return how often this prompt was refused before because the agent was busy."""
    count, earlier = 0, row
    while earlier.trouble == Code.AGENT_BUSY and count < MAX_REFUSALS:
        before = earlier.predecessor
        count += 1
        if before is None:
            break
        earlier = before
    return count


def _retry_text(transaction: SessionTransaction, first: Prompt, trouble: str, tools: Sequence[str]) -> str:
    """Return the continuation of a request, for an agent that has begun to use tools."""
    interruption = Interruption(transaction.session.task.title, first.text, tools)
    return retry_prompt(interruption, transient_errors.TROUBLE_SENTENCES[trouble])


def _first_attempt(row: Prompt) -> Prompt:
    """Return the prompt that a chain of retries began with."""
    while row.kind == PromptKind.RETRY and (earlier := Prompt.objects.filter(resent_as=row).first()) is not None:
        row = earlier
    return row


def load_due_retries() -> frozenset[uuid.UUID]:
    """Return the sessions with a queued retry whose time has come."""
    waiting = Prompt.objects.filter(state=PromptState.QUEUED, not_before__isnull=False).only("session_id", "not_before")
    return frozenset(row.session_id for row in waiting if row.is_due)
