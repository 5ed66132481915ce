"""Checking and using up the keys of waits (design 10); minting and taking back is ``models.waits``.

Errors are distinct: TokenInvalid, TokenExpired, TokenConsumed, TokenRevoked.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.utils import timezone

from sessions_app.domain.tokens import Scope, TokenState, WaitKind
from sessions_app.models import Draft, PermissionRequest, ResumeToken, TaskSession
from sessions_app.models.waits import consume
from sessions_app.services.errors import TokenConsumed, TokenExpired, TokenInvalid, TokenRevoked


def find(secret: str) -> ResumeToken:
    """The row of a secret, whatever became of it; TokenInvalid for anything that is none."""
    token = ResumeToken.of_secret(secret) if secret else None
    if token is None:
        raise TokenInvalid
    return token


def find_for(secret: str, session: TaskSession, kind: WaitKind, wait_id: str, run_id: Any) -> ResumeToken:
    """The row of a secret that is good for this very wait; TokenInvalid for that of another."""
    token = find(secret)
    if token.scope != Scope(str(session.id), None if run_id is None else str(run_id), kind, wait_id):
        raise TokenInvalid
    return token


def redeem(
    draft: Draft, token: ResumeToken, *, key: str, answer: dict[str, Any], by: Any = None
) -> tuple[dict[str, Any], bool]:
    """Use a key up and answer ``answer``; (the answer, whether it is the first).

    The same ``key`` again gets the first answer; no key is the same as none. Raises TokenConsumed,
    with what is known of who was first, TokenRevoked and TokenExpired.
    """
    if consume(draft, token, key=key, answer=answer, by=by):
        return answer, True
    settled = ResumeToken.objects.select_related("consumed_by").get(id=token.id)
    told = told_before(settled, key)
    if told is None:
        raise _refusal(settled)
    return told, False


def told_before(token: ResumeToken, key: str) -> dict[str, Any] | None:
    """What a key that opens nothing any more answers: None while it does; raises like ``redeem``."""
    state = token.state(timezone.now())
    if state is TokenState.ACTIVE:
        return None
    if state is TokenState.CONSUMED and key and token.idempotency_key == key:
        return dict(token.first_answer or {})
    raise _refusal(token)


def _refusal(token: ResumeToken) -> TokenConsumed | TokenRevoked | TokenExpired:
    """Why a key opens nothing any more, with what is known."""
    state = token.state(timezone.now())
    if state is TokenState.CONSUMED:
        by = token.consumed_by.get_username() if token.consumed_by else None
        return TokenConsumed(wait_id=token.wait_id, consumed_at=_iso(token.consumed_at), by=by)
    if state is TokenState.REVOKED:
        return TokenRevoked(wait_id=token.wait_id, revoked_at=_iso(token.revoked_at), reason=token.reason)
    return TokenExpired(wait_id=token.wait_id, expired_at=_iso(token.expires_at))


def _iso(moment: Any) -> str | None:
    return moment.isoformat() if moment else None


def of_permissions(asked: Collection[PermissionRequest]) -> dict[str, ResumeToken]:
    """The newest key of each permission, by its id; one query."""
    ids = [one.id for one in asked]
    rows = ResumeToken.objects.filter(wait_kind=WaitKind.PERMISSION, wait_id__in=ids).select_related("consumed_by")
    return {token.wait_id: token for token in rows.order_by("created_at", "id")}


def shown(token: ResumeToken | None) -> str | None:
    """The secret of a key that still opens something, for somebody who may answer."""
    if token is None or token.state(timezone.now()) is not TokenState.ACTIVE:
        return None
    return token.secret()
