"""What is asked and told of a turn that is tried again after a passing error of the provider."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from sessions_app.domain.states import OPEN_RUN_STATES, WORK, PromptState
from sessions_app.domain.transient import WORDS
from sessions_app.models import Draft, Prompt, TaskSession


def waiting_retry(session: TaskSession) -> Prompt | None:
    """The try again that waits for its time, or for the agent."""
    row: Prompt | None = session.prompts.filter(kind="retry", state=PromptState.QUEUED).order_by("id").first()
    return row


def take_back(draft: Draft) -> bool:
    """Try no more; False where nothing waits to be tried again."""
    row = waiting_retry(draft.session)
    if row is None:
        return False
    draft.move_prompt(row, "withdraw")
    rest_after(draft, row)
    return True


def rest_after(draft: Draft, withdrawn: Prompt) -> None:
    """With a try again that is withdrawn the work on its turn ends."""
    at_work = draft.session.runs.filter(state__in=OPEN_RUN_STATES).exists()
    if withdrawn.kind == "retry" and not at_work and WORK.allows(draft.session.work_state, "rest"):
        draft.work("rest")


def retry_json(session: TaskSession) -> dict[str, Any] | None:
    """What happened, when the turn is tried again, and which try that is; None where none waits."""
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
        "text": WORDS.get(row.trouble, ""),
    }
