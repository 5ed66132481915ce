"""Making, using and taking back the keys of the API; what is kept of one is ``models.api_token``."""

from __future__ import annotations

import logging
import uuid
from datetime import timedelta
from typing import Any, Final

from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.utils import timezone

from sessions_app.models import ApiToken
from sessions_app.models.api_token import COARSE
from sessions_app.services.errors import Conflict, NotFound

log = logging.getLogger(__name__)

MOST: Final = 50
"""Keys of one user that open something at the same time."""
LONGEST: Final = 365
"""Days that a key made on a page or through the API may live."""


def tokens_of(user: Any) -> QuerySet[ApiToken]:
    """The keys of ``user`` that were not taken back, newest first; those that have ended are among them."""
    return ApiToken.objects.filter(user_id=user.pk, revoked_at=None)


def make(user: Any, name: str, scope: str, days: int | None) -> tuple[ApiToken, str]:
    """A new key and its secret, which is known to nobody afterwards; Conflict where there are too many."""
    if ApiToken.objects.live().filter(user_id=user.pk).count() >= MOST:
        raise Conflict(f"You have {MOST} tokens. Revoke one that is not used any more, then make this one.")
    return ApiToken.mint(user, name, scope, timedelta(days=days) if days else None)


def revoke(user: Any, token_id: uuid.UUID) -> None:
    """From now on it opens nothing, and what is open through it ends within seconds; NotFound for another's."""
    if not tokens_of(user).filter(id=token_id).update(revoked_at=timezone.now()):
        raise NotFound


def revoke_named(user: Any, name: str) -> int:
    """Take back every key of ``user`` with this name; how many there were."""
    return tokens_of(user).filter(name=name).update(revoked_at=timezone.now())


def holder_of(key: str) -> tuple[Any, ApiToken] | None:
    """Whose key this is, and its row; None for one that opens nothing.

    The user of a key that only reads may do no more than read, wherever rights are asked.
    """
    token = ApiToken.of_key(key)
    if token is None:
        return None
    _note_use(token)
    return as_holder(token.user, reads_only=token.reads_only), token


def as_holder(user: Any, *, reads_only: bool) -> Any:
    """``user`` as whoever holds a key of theirs, which ``services.rights`` knows."""
    user.only_reads = reads_only
    return user


def _note_use(token: ApiToken) -> None:
    """Write down that it is used, once an hour. A database that takes nothing now keeps nobody from reading."""
    now = timezone.now()
    if token.last_used_at is not None and now - token.last_used_at < COARSE:
        return
    seldom = Q(last_used_at=None) | Q(last_used_at__lt=now - COARSE)
    try:
        ApiToken.objects.filter(seldom, id=token.id).update(last_used_at=now)
    except DatabaseError as error:
        log.warning("the use of an API token was not written down: %s", str(error).splitlines()[0])
