"""Retries of failed turns, and the explanation of an agent program that is missing or logged out."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.domain.agent_programs import EXPLAINED_CODES, explain_program_error
from sessions_app.domain.states import OPEN_RUN_STATES, WORK, PromptKind, PromptState
from sessions_app.domain.transient_errors import TROUBLE_SENTENCES
from sessions_app.models import Prompt, SessionTransaction, TaskSession


def explain_failure(session: TaskSession, code: str, said: str) -> str:
    """Explain to people a start or turn that failed with ``code``; ``said`` if there is nothing to add."""
    if code not in EXPLAINED_CODES:
        return said
    profile = session.agent_profile
    try:
        kind = agent_type(profile.agent_type)
    except UnknownPlugin:
        return said
    place = session.executor
    program = next(iter(profile.argv(place.runtime)), "")
    return explain_program_error(code, said, kind=kind, program=program, profile=profile.name, executor=place.name)


def waiting_retry(session: TaskSession) -> Prompt | None:
    """Return the retry that waits for its time or for the agent; None if there is none."""
    row: Prompt | None = session.prompts.filter(kind=PromptKind.RETRY, state=PromptState.QUEUED).order_by("id").first()
    return row


def withdraw_retry(transaction: SessionTransaction) -> bool:
    """Withdraw the waiting retry; return False if there is none."""
    row = waiting_retry(transaction.session)
    if row is None:
        return False
    transaction.move_prompt(row, "withdraw")
    end_work_after_retry(transaction, row)
    return True


def end_work_after_retry(transaction: SessionTransaction, withdrawn: Prompt) -> None:
    """Set the session to rest if the withdrawn prompt was a retry and no run is open."""
    at_work = transaction.session.runs.filter(state__in=OPEN_RUN_STATES).exists()
    if withdrawn.kind == PromptKind.RETRY and not at_work and WORK.allows(transaction.session.work_state, "rest"):
        transaction.move_work("rest")


def retry_json(session: TaskSession) -> dict[str, Any] | None:
    """Return what failed, when the turn is retried, and the number of the try; None if no retry waits."""
    row = waiting_retry(session)
    if row is None:
        return None
    return {
        "message_id": row.message_id,
        "attempt": row.attempt,
        "of": settings.KANDEV_TURN_RETRIES,
        "at": row.not_before.isoformat() if row.not_before else None,
        "error_code": row.trouble,
        "error_message": row.trouble_message,
        "text": TROUBLE_SENTENCES.get(row.trouble, ""),
    }
