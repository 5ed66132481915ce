"""Waits for the outside: a build, an approval, anything that has a deadline and may call back (design 10).

What comes back becomes a prompt ``wait:<wait_id>`` (rule 31); the run waits, is resumed and ends as one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from sessions_app.domain.attention import AttentionKind
from sessions_app.domain.continuation import wait_prompt
from sessions_app.domain.states import ENDED_STATES, PromptState, RunState
from sessions_app.domain.status import DerivedStatus
from sessions_app.domain.tokens import WaitKind
from sessions_app.models import INTERRUPTED_WAIT, Draft, Prompt, ResumeToken, Run, TaskSession, resolve, writing
from sessions_app.models import waits as writes
from sessions_app.services import tokens
from sessions_app.services.errors import Conflict, Invalid, TerminalState, TokenInvalid, TokenRevoked
from sessions_app.services.intents import check_text, wake
from sessions_app.services.rights import may_write_session
from sessions_app.services.unfinished import going_on, wait_of, words_of

UNDER_WAY = (PromptState.QUEUED, PromptState.SENDING, PromptState.ACCEPTED, PromptState.DELIVERED)


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait and its secret, which nobody is shown a second time."""

    run_id: uuid.UUID | None
    wait_id: str
    resume_token: str | None
    deadline: datetime | None


def open_wait(
    session_id: uuid.UUID, reason: str, deadline: datetime | None, by: Any, kind: WaitKind = WaitKind.EXTERNAL
) -> OpenWait:
    """Let a session at rest wait until ``deadline`` (None: for ever) for the outside, or for the result of a tool.

    Asked again it is the same wait with another key; the earlier one is revoked. Raises Invalid for a
    deadline that has passed, TerminalState, and Conflict where the agent is at work or about to be.
    """
    if deadline is not None and deadline <= timezone.now():
        raise Invalid("The deadline has passed.", field="deadline")
    with writing(session_id) as draft:
        _refuse_ended(draft)
        run = draft.open_run
        if run is not None and not run.has_process and run.state == RunState.WAITING:
            run.wait_kind = kind
            token = _ask_again(draft, run, reason, deadline, by)
        else:
            token = _begin(draft, kind, reason, deadline, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), deadline)


def rotate(session_id: uuid.UUID, wait_id: str, by: Any) -> OpenWait:
    """Give an open wait another key; the earlier one is revoked. Raises Conflict where it is over."""
    with writing(session_id) as draft:
        run = _open_run_of(draft, wait_id)
        token = _ask_again(draft, run, run.wait_reason, run.deadline_at, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), token.expires_at)


def end(session_id: uuid.UUID, wait_id: str) -> None:
    """Wait no longer: the key is revoked, the run is cancelled. Raises Conflict where the wait is over."""
    with writing(session_id) as draft:
        _open_run_of(draft, wait_id)
        writes.end_external(draft, "cancelled")


def _open_run_of(draft: Draft, wait_id: str) -> Run:
    run = draft.open_run
    if run is None or run.has_process or run.state != RunState.WAITING or run.wait_id != wait_id:
        raise Conflict("This wait is over.")
    return run


def may_begin(session: TaskSession) -> bool:
    """Whether the session is at rest, so that a wait could begin now."""
    if session.state in ENDED_STATES or session.task.is_over:
        return False
    return not session.runs.filter(ended_at=None).exists() and not _has_prompts(session)


def _has_prompts(session: TaskSession) -> bool:
    return session.prompts.filter(state__in=UNDER_WAY).exists()


def wait_again(session_id: uuid.UUID, wait_id: str, by: Any, deadline: datetime | None = None) -> OpenWait:
    """Begin anew a wait that ended without an answer, for as long as before unless a ``deadline`` is given.

    Raises Conflict where it is not the last thing that happened, and what ``open_wait`` raises.
    """
    if deadline is not None and deadline <= timezone.now():
        raise Invalid("The deadline has passed.", field="deadline")
    with writing(session_id) as draft:
        _refuse_ended(draft)
        wait = _interrupted(draft, wait_id)
        if deadline is None and wait["deadline"]:
            since, until = (datetime.fromisoformat(wait[name]) for name in ("since", "deadline"))
            deadline = timezone.now() + max(until - since, timedelta(0))
        draft.set(metadata={**draft.session.metadata, INTERRUPTED_WAIT: {}})
        token = _begin(draft, WaitKind(wait["kind"]), wait["reason"], deadline, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), deadline)


def continue_without(session_id: uuid.UUID, wait_id: str, by: Any) -> Prompt:
    """Tell the agent to go on without what it waited for; the same again gives that prompt, unless it was withdrawn.

    Raises Conflict where the wait is not the last thing that happened, and whatever refuses a start.
    """
    name = going_on({"id": wait_id})
    with writing(session_id) as draft:
        earlier = list(draft.session.prompts.filter(message_id__startswith=name).order_by("id"))
        if earlier and earlier[-1].state != PromptState.WITHDRAWN:
            return earlier[-1]
        _refuse_ended(draft)
        wait = _interrupted(draft, wait_id)
        wake(draft, by)
        resolve(draft, "continued", kinds=(AttentionKind.WAIT_INTERRUPTED,))
        name, text = f"{name}:{len(earlier)}" if earlier else name, wait_prompt(words_of(wait))
        row = Prompt.objects.create(session=draft.session, message_id=name, text=text, kind="wait", by=by)
        draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)
    return row


def _interrupted(draft: Draft, wait_id: str) -> Mapping[str, Any]:
    """The wait that ended without an answer, if nothing has happened since."""
    wait, run = wait_of(draft.session), draft.newest_run
    if wait is None or run is None or (wait["id"], wait["run_id"]) != (wait_id, str(run.id)):
        raise Conflict("This wait is not one that has ended without an answer, or the session has gone on since.")
    return wait


def _begin(draft: Draft, kind: WaitKind, reason: str, deadline: datetime | None, by: Any) -> ResumeToken:
    if draft.open_run is not None or _has_prompts(draft.session):
        raise Conflict("The agent is at work, or has a prompt to work on. A wait can begin when its turn has ended.")
    wait_id = str(uuid.uuid4())
    draft.start_run(message_id(wait_id), has_process=False)
    resolve(draft, "waits_again", kinds=(AttentionKind.WAIT_INTERRUPTED,))
    return writes.begin(draft, kind, wait_id, deadline=deadline, reason=reason, by=by)


def _ask_again(draft: Draft, run: Run, reason: str, deadline: datetime | None, by: Any) -> ResumeToken:
    writes.revoke(draft, "rotated", run=run)
    run.wait_reason, run.deadline_at = reason, deadline
    run.save(update_fields=["wait_kind", "wait_reason", "deadline_at"])
    return writes.mint(draft, run, WaitKind(run.wait_kind), run.wait_id, expires_at=deadline, by=by)


def message_id(wait_id: str) -> str:
    """The name of the prompt that a wait becomes, and of its run from the beginning."""
    return f"wait:{wait_id}"


def resume(secret: str, payload: Any, key: str) -> dict[str, str]:
    """End a wait with what has come; ``{run_id, status}``. The key is the only credential.

    It is worth what whoever asked for the wait may do: the key of somebody who may not write in the team any more
    opens nothing (TokenRevoked). The same idempotency ``key`` again gets the first answer. Raises the errors of
    ``services.tokens`` and whatever refuses a start; then the key can be used later.
    """
    found = tokens.find(secret)
    if found.wait_kind == WaitKind.PERMISSION or found.run_id is None:
        raise TokenInvalid
    if (told := tokens.told_before(found, key)) is not None:
        return told
    if found.by is not None and not may_write_session(found.by, found.session):
        raise TokenRevoked(wait_id=found.wait_id, reason="owner_left")
    answer = {"run_id": str(found.run_id), "status": str(DerivedStatus.RUNNING)}
    with writing(found.session_id) as draft:
        told, first = tokens.redeem(draft, found, key=key, answer=answer)
        if first:
            _go_on(draft, found, payload)
    return told


def _go_on(draft: Draft, token: ResumeToken, payload: Any) -> None:
    """The run is resumed, and its prompt waits for the agent, which is woken if it sleeps."""
    _refuse_ended(draft)
    run = draft.open_run
    if run is None or run.id != token.run_id:
        raise TokenRevoked
    text = _text(run, payload)
    draft.move_run("resume")
    wake(draft, None)
    row = Prompt.objects.create(session=draft.session, message_id=run.message_id, text=text, kind="wait")
    draft.say("session.prompt.queued", message_id=row.message_id, kind=row.kind, state=row.state)


def _refuse_ended(draft: Draft) -> None:
    if draft.session.state in ENDED_STATES or draft.session.task.is_over:
        raise TerminalState


def _text(run: Run, payload: Any) -> str:
    """The payload as the agent is told it: a text as it is, anything else as JSON."""
    if payload in (None, "", {}, []):
        payload = f"What was waited for has come: {run.wait_reason or 'go on'}"
    text = payload if isinstance(payload, str) else json.dumps(payload, indent=2, ensure_ascii=False)
    check_text(text, field="payload")
    return text
