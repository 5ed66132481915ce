"""API tokens (create, find, revoke, take over from REST framework as hashes), and the other logins of a user."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session as Login
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.utils import timezone
from rest_framework.authtoken.models import Token

from sessions_app.accounts.models import LAST_USED_PRECISION, ApiToken
from sessions_app.services.errors import Conflict, NotFound


def count_other_logins(user: Any, here: str | None) -> int:
    """How many logins of ``user`` there are beside the one with the key ``here``."""
    return sum(1 for _ in _other_login_sessions(user, here))


def end_other_logins(user: Any, here: str | None) -> int:
    """End them; what is open through one of them is closed within seconds. How many there were."""
    keys = list(_other_login_sessions(user, here))
    Login.objects.filter(session_key__in=keys).delete()
    return len(keys)


def _other_login_sessions(user: Any, here: str | None) -> Iterator[str]:
    """A login does not tell whose it is but to who reads it; there are as many as people and browsers."""
    for login in Login.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=here).iterator():
        if str(login.get_decoded().get(SESSION_KEY)) == str(user.pk):
            yield login.session_key


log = logging.getLogger(__name__)

MAX_TOKENS: Final = 50
"""Keys of one user that open something at the same time."""
MAX_LIFETIME_DAYS: Final = 365
"""Days that a key made on a page or through the API may live."""


def list_tokens(user: Any) -> QuerySet[ApiToken]:
    """The keys of ``user`` that were not taken back, newest first; those that have ended are among them."""
    return ApiToken.objects.filter(user_id=user.pk, revoked_at=None)


def create_token(user: Any, name: str, scope: str, days: int | None) -> tuple[ApiToken, str]:
    """A new key and its secret, which is known to nobody afterwards; Conflict where there are too many."""
    if ApiToken.objects.live().filter(user_id=user.pk).count() >= MAX_TOKENS:
        raise Conflict(f"You have {MAX_TOKENS} tokens. Revoke one that is no longer used, then create this one.")
    return ApiToken.mint(user, name, scope, timedelta(days=days) if days else None)


def revoke_token(user: Any, token_id: uuid.UUID) -> None:
    """From now on it opens nothing, and what is open through it ends within seconds; NotFound for another's."""
    if not list_tokens(user).filter(id=token_id).update(revoked_at=timezone.now()):
        raise NotFound


def revoke_tokens_named(user: Any, name: str) -> int:
    """Take back every key of ``user`` with this name; how many there were."""
    return list_tokens(user).filter(name=name).update(revoked_at=timezone.now())


def authenticate_token(key: str) -> tuple[Any, ApiToken] | None:
    """Whose key this is, and its row; None for one that opens nothing.

    The user of a key that only reads may do no more than read, wherever rights are asked.
    """
    token = ApiToken.find_live(key)
    if token is None:
        return None
    _record_use(token)
    return user_with_token_scope(token.user, reads_only=token.reads_only), token


def user_with_token_scope(user: Any, *, reads_only: bool) -> Any:
    """``user`` as whoever holds a key of theirs, which ``services.rights`` knows."""
    user.only_reads = reads_only
    return user


def _record_use(token: ApiToken) -> None:
    """Write down that it is used, once an hour. A database that takes nothing now keeps nobody from reading."""
    now = timezone.now()
    if token.last_used_at is not None and now - token.last_used_at < LAST_USED_PRECISION:
        return
    seldom = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED_PRECISION)
    try:
        ApiToken.objects.filter(seldom, id=token.id).update(last_used_at=now)
    except DatabaseError as error:
        log.warning("the use of an API token was not written down: %s", str(error).splitlines()[0])


@receiver(post_save, sender=Token, dispatch_uid="keep hashes alone")
def take_over_rest_framework_token(sender: type[Token], instance: Token, raw: bool = False, **more: Any) -> None:
    """Take the key over and forget its text; whoever has just made it still holds it."""
    ApiToken.keep(instance.user, instance.key, "Made by a program", ApiToken.Scope.WRITE, None)
    sender.objects.filter(pk=instance.pk).delete()
