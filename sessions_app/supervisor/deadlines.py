"""Waits whose time is over, and keys that somebody has to make anew (rule 30; "Rotate" in the rules)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TypeVar

from django.utils import timezone

from sessions_app.domain.tokens import TokenState, WaitKind
from sessions_app.models import IntentKind, PermissionRequest, ResumeToken, waits, writing
from sessions_app.services.intents import order
from sessions_app.services.tokens import of_permissions

Id = TypeVar("Id")
log = logging.getLogger(__name__)
AT_ONCE = 100
"""Waits that one pass ends; the next one is not far."""


def end_overdue() -> int:
    """Say of every key that is too old that it is, and end what waits for it; how many."""
    due = list(ResumeToken.objects.due(timezone.now()).values_list("id", "session_id")[:AT_ONCE])
    return sum(_guarded(_end, token_id, session_id) for token_id, session_id in due)


def _end(token_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    with writing(session_id) as draft:
        token = waits.expire(draft, token_id)
        if token is None:
            return False
        if token.wait_kind == WaitKind.PERMISSION:
            # The agent is told that nobody answered, as an order, which survives whatever happens to us.
            order(draft.session, IntentKind.ANSWER, None, {"permission_id": token.wait_id, "option_id": None})
        elif draft.open_run is not None and draft.open_run.id == token.run_id:
            waits.interrupt_external(draft, "wait_timeout")
    return True


def renew_keys() -> int:
    """Give a permission that is open without a key, or with one that nobody can be shown, another; how many."""
    asked = list(PermissionRequest.objects.filter(state="pending"))
    known = of_permissions(asked)
    return sum(_guarded(_renew, one.id, one.session_id) for one in asked if _is_unusable(known.get(one.id)))


def _is_unusable(token: ResumeToken | None) -> bool:
    """None was minted (it was asked before there were keys), or the server's key that made it is gone."""
    if token is None:
        return True
    return token.state(timezone.now()) is TokenState.ACTIVE and token.secret() is None


def _renew(permission_id: str, session_id: uuid.UUID) -> bool:
    with writing(session_id) as draft:
        asked = draft.session.permissions.filter(id=permission_id, state="pending").first()
        if asked is None:
            return False
        old = of_permissions([asked]).get(asked.id)
        if not _is_unusable(old):
            return False
        waits.revoke(draft, "rotated", wait_id=asked.id)
        ends = old.expires_at if old else None
        waits.mint(draft, asked.run, WaitKind.PERMISSION, asked.id, expires_at=ends)
    return True


def _guarded(do: Callable[[Id, uuid.UUID], bool], about: Id, session_id: uuid.UUID) -> bool:
    """One bad row never stops the others."""
    try:
        return do(about, session_id)
    except Exception:
        log.exception("a wait of session %s could not be looked after", session_id)
        return False
