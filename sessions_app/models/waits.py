"""What happens to a wait and its key, each with its line in the log; all in the caller's draft (design 10).

Every settlement of a key is one guarded UPDATE: one row means that it was settled here, none that
somebody else was first.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from sessions_app.domain.states import PromptState, RunState
from sessions_app.domain.tokens import WaitKind
from sessions_app.models.event import NewEvent
from sessions_app.models.prompt import Prompt
from sessions_app.models.resume_token import ResumeToken
from sessions_app.models.run import Run
from sessions_app.models.session import INTERRUPTED_WAIT

if TYPE_CHECKING:
    from sessions_app.models.draft import Draft

GIVEN_UP = frozenset({PromptState.HELD, PromptState.DISMISSED, PromptState.WITHDRAWN})
"""States of a prompt in which it starts no turn by itself."""


def begin_permission(draft: Draft, permission_id: str, run: Run | None) -> ResumeToken:
    """The agent asks, and waits for the answer as long as this deployment lets it."""
    limit = settings.KANDEV_PERMISSION_TIMEOUT
    deadline = timezone.now() + timedelta(seconds=limit) if limit else None
    if run is None:
        return mint(draft, None, WaitKind.PERMISSION, permission_id, expires_at=deadline)
    return begin(draft, WaitKind.PERMISSION, permission_id, deadline=deadline)


def begin(
    draft: Draft, kind: WaitKind, wait_id: str, *, deadline: datetime | None = None, reason: str = "", by: Any = None
) -> ResumeToken:
    """The open run, if there is one, waits from now on; the key of the wait."""
    run = draft.open_run
    if run is not None:
        run.wait_kind, run.wait_id, run.wait_reason, run.deadline_at = kind, wait_id, reason, deadline
        before = len(draft.events)
        ends = deadline.isoformat() if deadline else None
        draft.move_run("wait", wait_kind=str(kind), wait_id=wait_id, deadline=ends)
        run.save(update_fields=["wait_kind", "wait_id", "wait_reason", "deadline_at"])
        if len(draft.events) > before:
            event = draft.events[-1]
            draft.then.append(lambda: _keep_seq(run, event))
    return mint(draft, run, kind, wait_id, expires_at=deadline, by=by)


def _keep_seq(run: Run, event: NewEvent) -> None:
    Run.objects.filter(id=run.id).update(since_seq=event.seq)


def mint(
    draft: Draft, run: Run | None, kind: WaitKind, wait_id: str, *, expires_at: datetime | None = None, by: Any = None
) -> ResumeToken:
    """A new key for a wait; its secret follows from its id."""
    token = ResumeToken(session=draft.session, run=run, wait_kind=kind, wait_id=wait_id, expires_at=expires_at, by=by)
    token.seal()
    token.save(force_insert=True)
    draft.say("session.token.minted", expires_at=expires_at.isoformat() if expires_at else None, **_told(token))
    return token


def consume(draft: Draft, token: ResumeToken, *, key: str, answer: dict[str, Any], by: Any) -> bool:
    """Use a key up, once; False where it is used, revoked or too old by now."""
    now = timezone.now()
    values = {"consumed_at": now, "consumed_by": by, "idempotency_key": key, "first_answer": answer}
    if not ResumeToken.objects.active(now).filter(id=token.id).update(**values):
        return False
    draft.say("session.token.consumed", by=by.get_username() if by else None, **_told(token))
    return True


def revoke(draft: Draft, reason: str, **wanted: Any) -> int:
    """Take back whatever keys of the session fit ``wanted`` and are not settled; how many."""
    count = 0
    for token in ResumeToken.objects.unsettled().filter(session=draft.session, **wanted):
        row = ResumeToken.objects.unsettled().filter(id=token.id)
        if row.update(revoked_at=timezone.now(), reason=reason[:64]):
            draft.say("session.token.revoked", reason=reason, **_told(token))
            count += 1
    return count


def expire(draft: Draft, token_id: uuid.UUID) -> ResumeToken | None:
    """Say of a key that is too old that it is; None where somebody was first."""
    now = timezone.now()
    if not ResumeToken.objects.due(now).filter(id=token_id).update(expired_at=now):
        return None
    token = ResumeToken.objects.get(id=token_id)
    draft.say("session.token.expired", **_told(token))
    return token


def end_external(draft: Draft, reason: str) -> bool:
    """A wait for the outside is over without an answer: its run is cancelled, its key revoked."""
    run = draft.open_run
    if run is None or run.has_process or run.state != RunState.WAITING:
        return False
    draft.move_run("cancel", reason=reason)
    return True


def interrupt_external(draft: Draft, reason: str) -> bool:
    """What was waited for has not come: the run is interrupted, and people and the agent are told (``noticing``)."""
    run = draft.open_run
    if run is None or run.has_process or run.state != RunState.WAITING:
        return False
    told = {
        "run_id": str(run.id),
        "id": run.wait_id,
        "kind": str(run.wait_kind),
        "reason": run.wait_reason,
        "since": run.started_at.isoformat(),
        "deadline": run.deadline_at.isoformat() if run.deadline_at else None,
        "at": draft.at.isoformat(),
    }
    draft.set(metadata={**draft.session.metadata, INTERRUPTED_WAIT: told})
    draft.move_run("interrupt", reason=reason, once=f"run.interrupted:{run.id}")
    return True


def lose_prompt(draft: Draft, prompt: Prompt) -> None:
    """What came of a wait reaches no agent by itself any more: its run is over."""
    run = draft.open_run
    if prompt.state in GIVEN_UP and run is not None and not run.has_process and run.message_id == prompt.message_id:
        draft.move_run("cancel", reason=f"prompt_{prompt.state}")


def _told(token: ResumeToken) -> dict[str, Any]:
    """What a line of the log says of a key; nothing that opens anything."""
    return {
        "token_id": str(token.id),
        "run_id": None if token.run_id is None else str(token.run_id),
        "wait_kind": str(token.wait_kind),
        "wait_id": token.wait_id,
    }
