"""API tokens (create, find, revoke, convert those of REST framework to hashes), and the other logins of a user."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as Login
from django.db import DatabaseError
from django.db.models import Q, QuerySet
from django.db.models.signals import post_save
from django.dispatch import receiver
from django.utils import timezone
from rest_framework.authtoken.models import Token

from sessions_app.accounts.models import LAST_USED_PRECISION, ApiToken
from sessions_app.kernel.services.errors import Conflict, NotFound


def count_other_logins(user: User, here: str | None) -> int:
    """Return the number of logins of ``user`` except the one with the session key ``here``."""
    return sum(1 for _ in _other_login_sessions(user, here))


def end_other_logins(user: User, here: str | None) -> int:
    """End the other logins and return their number. Their sockets are closed within seconds."""
    keys = list(_other_login_sessions(user, here))
    Login.objects.filter(session_key__in=keys).delete()
    return len(keys)


def _other_login_sessions(user: User, here: str | None) -> Iterator[str]:
    """Yield the other login sessions of ``user``. Only decoding a session shows whose it is."""
    for login in Login.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=here).iterator():
        if str(login.get_decoded().get(SESSION_KEY)) == str(user.pk):
            yield login.session_key


log = logging.getLogger(__name__)

MAX_TOKENS: Final = 50
"""Maximum number of live tokens of one user."""
MAX_LIFETIME_DAYS: Final = 365
"""Maximum lifetime in days that a user can choose."""


def list_tokens(user: User) -> QuerySet[ApiToken]:
    """Return the tokens of ``user`` that were not revoked, newest first, expired ones included."""
    return ApiToken.objects.filter(user_id=user.pk, revoked_at=None)


def create_token(user: User, name: str, scope: str, days: int | None) -> tuple[ApiToken, str]:
    """Create a token; return its row and its secret, which is not stored. Raise Conflict if there are too many."""
    if ApiToken.objects.live().filter(user_id=user.pk).count() >= MAX_TOKENS:
        raise Conflict(f"You have {MAX_TOKENS} tokens. Revoke one that is no longer used, then create this one.")
    lifetime = None
    if days:
        lifetime = timedelta(days=days)
    return ApiToken.mint(user, name, scope, lifetime)


def revoke_token(user: User, token_id: uuid.UUID) -> None:
    """Revoke a token of ``user``; its sockets close within seconds. Raise NotFound for another user's token."""
    if not list_tokens(user).filter(id=token_id).update(revoked_at=timezone.now()):
        raise NotFound


def revoke_tokens_named(user: User, name: str) -> int:
    """Revoke every token of ``user`` with this name; return their number."""
    return list_tokens(user).filter(name=name).update(revoked_at=timezone.now())


def authenticate_token(key: str) -> tuple[Any, ApiToken] | None:
    """Return the user and the row of a live token; None for any other.

    With a read-only token, the returned user can write in no team (see ``authorization.writable_teams``).
    """
    token = ApiToken.find_live(key)
    if token is None:
        return None
    _record_use(token)
    return user_with_token_scope(token.user, reads_only=token.reads_only), token


def user_with_token_scope(user: User, *, reads_only: bool) -> User:
    """Return ``user`` restricted to what the token allows; see ``authorization.writable_teams``."""
    user.only_reads = reads_only  # type: ignore[attr-defined]  # read with getattr by ``authorization``
    return user


def _record_use(token: ApiToken) -> None:
    """Record the use of a token, at most once an hour. A database that is read-only now does not fail the request."""
    now = timezone.now()
    if token.last_used_at is not None and now - token.last_used_at < LAST_USED_PRECISION:
        return
    # The condition holds in the UPDATE, too: of many concurrent requests, only one writes.
    seldom = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED_PRECISION)
    try:
        ApiToken.objects.filter(seldom, id=token.id).update(last_used_at=now)
    except DatabaseError as error:
        log.warning("the use of an API token could not be recorded: %s", str(error).splitlines()[0])


@receiver(post_save, sender=Token, dispatch_uid="keep hashes alone")
def take_over_rest_framework_token(sender: type[Token], instance: Token, raw: bool = False, **more: Any) -> None:
    """Store the hash of a token that REST framework created, and delete its clear text."""
    # Stored first: in the other order, a crash in between would lose the token.
    ApiToken.keep(instance.user, instance.key, "Created by a program", ApiToken.Scope.WRITE, None)
    sender.objects.filter(pk=instance.pk).delete()
