"""Renew the keys of open permission requests that nobody could answer with, as after the loss of a SECRET_KEY."""

from __future__ import annotations

import uuid
from typing import Final

from django.utils import timezone

from sessions_app.kernel.guarded_jobs import guard_job
from sessions_app.kernel.rules.states import PermissionState
from sessions_app.models import PermissionRequest, WaitKey, session_transaction
from sessions_app.permissions.services import permission_keys
from sessions_app.waits.models import mint_wait_key, revoke_wait_keys
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind

RENEWAL_BATCH: Final = 200
"""Open requests of which one call of `renew_permission_keys` checks the keys at most."""


def renew_permission_keys(after: str = "") -> tuple[int, str]:
    """Mint a new key for open permission requests that have none, or an undecryptable one.

    Checks ``RENEWAL_BATCH`` of them whose id is greater than ``after``. Returns how many keys are new, and the last
    id, from which the next call continues; empty if there are no more requests.
    """
    waiting = PermissionRequest.objects.filter(state=PermissionState.PENDING, id__gt=after).order_by("id")
    requests = list(waiting.only("id", "session_id")[:RENEWAL_BATCH])
    keys = permission_keys(requests)
    count = 0
    for request in requests:
        if _is_unusable(keys.get(request.id)):
            count += guard_job(request.session_id, "its key", _renew_key, request.id, request.session_id)
    if len(requests) < RENEWAL_BATCH:
        return count, ""
    return count, requests[-1].id


def _is_unusable(key: WaitKey | None) -> bool:
    """Whether a request has no key, or an active one whose secret the server's present keys cannot restore."""
    if key is None:
        return True
    return key.state(timezone.now()) is WaitKeyState.ACTIVE and key.secret() is None


def _renew_key(permission_id: str, session_id: uuid.UUID) -> bool:
    with session_transaction(session_id) as transaction:
        request = transaction.session.permissions.filter(id=permission_id, state=PermissionState.PENDING).first()
        if request is None:
            return False
        earlier = permission_keys([request]).get(request.id)
        if not _is_unusable(earlier):
            return False
        revoke_wait_keys(transaction, "rotated", wait_id=request.id)
        expires_at = None
        if earlier is not None:
            expires_at = earlier.expires_at
        mint_wait_key(transaction, request.run, WaitKind.PERMISSION, request.id, expires_at=expires_at)
    return True
