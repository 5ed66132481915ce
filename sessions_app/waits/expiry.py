"""End waits whose time has passed, and renew their keys."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.utils import timezone

from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import (
    WAITING_PROMPT_STATES,
    PermissionState,
)
from sessions_app.models import (
    IntentKind,
    PermissionRequest,
    Prompt,
    ResumeToken,
    session_transaction,
)
from sessions_app.sessions.services.intents import create_intent
from sessions_app.waits import models as waits
from sessions_app.waits.rules.wait_tokens import TokenState, WaitKind
from sessions_app.waits.services import permission_tokens

DEADLINE_BATCH = 100
"""Waits that one pass ends at most; the next pass follows within a second."""


def expire_waits() -> int:
    """Expire every wait token whose time has passed, and end the wait; return how many."""
    due = list(ResumeToken.objects.due(timezone.now()).values_list("id", "session_id")[:DEADLINE_BATCH])
    return sum(guard_job(session_id, "its wait", _expire_wait, token_id, session_id) for token_id, session_id in due)


def _expire_wait(token_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        token = waits.expire_token(transaction, token_id)
        if token is None:
            return False
        if token.wait_kind == WaitKind.PERMISSION:
            # As an intent in this transaction: the agent is notified that there was no answer even if we crash now.
            create_intent(
                transaction.session, IntentKind.ANSWER, None, {"permission_id": token.wait_id, "option_id": None}
            )
        elif transaction.open_run is not None and transaction.open_run.id == token.run_id:
            waits.interrupt_external_wait(transaction, "wait_timeout")
    return True


def next_deadline() -> datetime | None:
    """Return when the next wait expires; now while prompts wait for an agent, which may become overdue or due."""
    if Prompt.objects.filter(state__in=WAITING_PROMPT_STATES).exists():
        return timezone.now()
    waits_with_end = ResumeToken.objects.unsettled().filter(expires_at__isnull=False).order_by("expires_at")
    return waits_with_end.values_list("expires_at", flat=True).first()


RENEWAL_BATCH = 200
"""Open requests of which one call of `renew_tokens` checks the tokens at most."""


def renew_tokens(after: str = "") -> tuple[int, str]:
    """Mint a new token for open permission requests that have none, or an undecryptable one.

    Checks ``RENEWAL_BATCH`` of them whose id is greater than ``after``. Returns how many tokens are new, and the last
    id, from which the next call continues; empty if there are no more requests.
    """
    waiting = PermissionRequest.objects.filter(state=PermissionState.PENDING, id__gt=after).order_by("id")
    requests = list(waiting.only("id", "session_id")[:RENEWAL_BATCH])
    known = permission_tokens(requests)
    lost = [(request.id, request.session_id) for request in requests if _is_unusable(known.get(request.id))]
    count = sum(guard_job(session_id, "its key", _renew_token, key, session_id) for key, session_id in lost)
    is_last = len(requests) < RENEWAL_BATCH
    return count, "" if is_last else requests[-1].id


def _is_unusable(token: ResumeToken | None) -> bool:
    """Whether a request has no token, or an active one whose secret the server's present keys cannot restore."""
    if token is None:
        return True
    return token.state(timezone.now()) is TokenState.ACTIVE and token.secret() is None


def _renew_token(permission_id: str, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        request = transaction.session.permissions.filter(id=permission_id, state=PermissionState.PENDING).first()
        if request is None:
            return False
        old = permission_tokens([request]).get(request.id)
        if not _is_unusable(old):
            return False
        waits.revoke_tokens(transaction, "rotated", wait_id=request.id)
        ends = old.expires_at if old else None
        waits.mint_token(transaction, request.run, WaitKind.PERMISSION, request.id, expires_at=ends)
    return True
