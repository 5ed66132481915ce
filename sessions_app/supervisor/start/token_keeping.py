"""Who may write the agent's conversation id, and when (design 8): kept, replaced, set aside, never lost.

Every caller holds the session and its execution locked, under the lease of exactly that execution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executors_app.models import ExecutorRunning
from sessions_app.domain.belonging import REJECTED_TOKEN_OF, TOKEN_OF, Belonging
from sessions_app.domain.resumability import Strategy
from sessions_app.models import Draft, IntentKind, TaskSession


def belonging_of(session: TaskSession, execution: ExecutorRunning) -> Belonging:
    """What a conversation that is opened now belongs to."""
    profile = session.agent_profile
    return Belonging(str(profile.pk), profile.agent_type, execution.workspace_path)


def take_told(draft: Draft, execution: ExecutorRunning, told: Mapping[str, Any] | None) -> list[str]:
    """What agentctl says of its agent's conversation; the names of the fields that are to be saved."""
    token = str(told.get("resume_token") or "") if told else ""
    if not told or token in ("", execution.rejected_resume_token) or _is_unproven(draft, execution, token):
        return []
    if not execution.resume_token:
        _note(draft, TOKEN_OF, belonging_of(draft.session, execution).to_json())
    execution.resume_token = token
    execution.last_message_uuid = str(told.get("last_message_uuid") or "")
    return ["resume_token", "last_message_uuid"]


def _is_unproven(draft: Draft, execution: ExecutorRunning, token: str) -> bool:
    """Another conversation in place of the one we have: whether it works, the start that opened it will say.

    The agent that is up may go on under another name; any other word is of a start that is under way or has failed.
    """
    if execution.resume_token == token or not (execution.resume_token or execution.rejected_resume_token):
        return False
    start = draft.session.intents.filter(kind=IntentKind.START, done_at=None).first()
    opens_new = start is not None and start.payload.get("strategy") in (Strategy.FRESH, Strategy.HISTORY)
    return opens_new or not draft.session.launch_id


def replace(draft: Draft, execution: ExecutorRunning, token: str, strategy: str) -> None:
    """A start has worked with this conversation; what it replaces is set aside, and what was aside may be back."""
    old = execution.resume_token
    if old and old != token and strategy != Strategy.NATIVE:
        execution.rejected_resume_token = old
        _note(draft, REJECTED_TOKEN_OF, draft.session.metadata.get(TOKEN_OF))
    execution.resume_token = token or (old if strategy == Strategy.NATIVE else "")  # some name it in their first turn
    if token:
        _note(draft, TOKEN_OF, belonging_of(draft.session, execution).to_json())
    if token and execution.rejected_resume_token == token:
        execution.rejected_resume_token = ""


def set_aside(draft: Draft) -> None:
    """The agent itself says that it does not have this conversation: kept apart, to be tried again."""
    execution = draft.execution
    if execution is not None and execution.resume_token:
        execution.rejected_resume_token, execution.resume_token = execution.resume_token, ""
        execution.save(update_fields=["rejected_resume_token", "resume_token", "updated_at"])
        _note(draft, REJECTED_TOKEN_OF, draft.session.metadata.get(TOKEN_OF))


def _note(draft: Draft, key: str, value: Any) -> None:
    draft.set(metadata={**draft.session.metadata, key: value})
