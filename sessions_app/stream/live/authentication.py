"""Authentication of sockets by login or API token, the periodic check of access, and the close codes."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session as Login
from django.http.request import split_domain_port, validate_host
from django.utils import timezone
from django.utils.http import is_same_domain

from sessions_app.accounts import credentials
from sessions_app.accounts.credentials import user_with_token_scope
from sessions_app.accounts.models import ApiToken
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.kernel.services.errors import NotFound
from sessions_app.models import Task, TaskSession


class CloseCode(IntEnum):
    """Codes with which a socket is closed; after SLOW and the ones below it, the client may reconnect."""

    ENDED = 1000
    """The shell has ended."""
    INVALID = 4400
    """The size or name of a shell is not valid."""
    NOT_AUTHENTICATED = 4401
    FORBIDDEN = 4403
    """The user may see the session but not operate it, as with shells where agents are not isolated."""
    NOT_FOUND = 4404
    """The object does not exist, or belongs to another team."""
    SLOW = 4408
    """The client left too much unacknowledged; it may reconnect with ``?after=``."""
    OVERTAKEN = 4410
    """The same shell was opened elsewhere."""
    TOO_MANY = 4429
    """The user, or the session's shells, are at their limit."""
    UNREACHABLE = 4503
    """The database does not answer; for a shell, also the session's agentctl."""
    RESTARTING = 1012
    """This web process ends; the client reconnects, to another one or its successor, with ``?after=``."""
    FAILED = 1011
    """An unexpected error in the server."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A user with the credential that admitted them: the key of a login, or the hash of an API token."""

    user_id: int
    login: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    password_fingerprint: str = field(default="", repr=False)
    """Django's hash of the login, which changes with the password: a new password ends every login."""
    is_read_only: bool = False
    """Whether the token gives only the rights of a viewer."""

    @classmethod
    def of_token(cls, token: ApiToken) -> Principal:
        """Return the principal of an API token."""
        return cls(token.user_id, token=token.secret_hash, is_read_only=token.reads_only)

    def user(self) -> Any:
        """Load the user. Raises NotFound if they are no longer active."""
        found = get_user_model().objects.filter(pk=self.user_id, is_active=True).first()
        if found is None:
            raise NotFound
        return user_with_token_scope(found, reads_only=self.is_read_only)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a socket follows for its principal: one session, or all sessions of a task."""

    principal: Principal
    task_id: uuid.UUID
    session_id: uuid.UUID | None = None


def revoked_subscriptions(subscriptions: Collection[Subscription]) -> dict[Subscription, CloseCode]:
    """Return the subscriptions that have lost their access, with the close code; a constant number of statements."""
    # In this order: a user who is deleted in between gets NOT_AUTHENTICATED rather than NOT_FOUND.
    visible = _visible_subscriptions(subscriptions)
    known = _valid_principals({subscription.principal for subscription in subscriptions})
    return {
        subscription: CloseCode.NOT_FOUND if subscription.principal in known else CloseCode.NOT_AUTHENTICATED
        for subscription in subscriptions
        if subscription.principal not in known or subscription not in visible
    }


def _valid_principals(principals: Collection[Principal]) -> set[Principal]:
    """Return the principals whose user is active and whose login or token is still valid."""
    users = get_user_model().objects.filter(pk__in={principal.user_id for principal in principals}, is_active=True)
    marks = {user.pk: user.get_session_auth_hash() for user in users}
    logins = Login.objects.filter(
        session_key__in={principal.login for principal in principals if principal.login}, expire_date__gt=timezone.now()
    )
    tokens = ApiToken.objects.live().filter(
        secret_hash__in={principal.token for principal in principals if principal.token}
    )
    keys: set[tuple[int | None, str]] = {(None, key) for key in logins.values_list("session_key", flat=True)}
    keys.update(tokens.values_list("user_id", "secret_hash"))
    return {
        principal
        for principal in principals
        if principal.user_id in marks and _is_valid_mark(principal, marks[principal.user_id], keys)
    }


def _is_valid_mark(principal: Principal, mark: str, keys: Collection[tuple[int | None, str]]) -> bool:
    if principal.token is not None:
        return (principal.user_id, principal.token) in keys
    return principal.password_fingerprint == mark and (None, principal.login) in keys


def _visible_subscriptions(subscriptions: Collection[Subscription]) -> set[Subscription]:
    """Return those whose session exists and whose user is in the task's team, for many users in two queries."""
    tasks = Task.objects.filter(
        id__in={subscription.task_id for subscription in subscriptions},
        team__user__in={subscription.principal.user_id for subscription in subscriptions},
    )
    ids = {subscription.session_id for subscription in subscriptions if subscription.session_id}
    sessions = {None, *TaskSession.objects.filter(id__in=ids).values_list("id", flat=True)}
    members = set(tasks.values_list("id", "team__user"))
    return {
        subscription
        for subscription in subscriptions
        if subscription.session_id in sessions and (subscription.task_id, subscription.principal.user_id) in members
    }


_PORTS: Final = {"http": "80", "https": "443"}
Scope = dict[str, Any]
OriginParts = tuple[str, str, str]
"""Scheme, host and port."""


REMEMBER_USER: Final = "kandev.remember_user"
"""Key of the scope for a function that is told whose credential the request has (``kandev.request_slots``)."""


def remember_user(scope: Scope, user_id: int) -> None:
    """Tell the web server that the credential of a request was accepted."""
    if (remember := scope.get(REMEMBER_USER)) is not None:
        remember(user_id)


async def authenticate(scope: Scope) -> Principal | None:
    """Return the principal that opens a socket; None if the credentials are missing or not valid."""
    # Browsers always send ``Origin`` with a WebSocket, and cookies even from pages of other sites: a login counts only
    # from our own origin. Without the header it is a program, which needs a token.
    origins = header_values(scope, "origin")
    if not origins:
        return await run_in_database(_authenticate_token, header_values(scope, "authorization"))
    user = scope["user"]
    if not is_own_origin(scope, origins) or not user.is_authenticated:
        return None
    return Principal(user.pk, login=scope["session"].session_key, password_fingerprint=user.get_session_auth_hash())


def header_values(scope: Scope, name: str) -> list[str]:
    """Return every value of a header; ``name`` is in lower case."""
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def _authenticate_token(given: list[str]) -> Principal | None:
    words = given[0].split() if len(given) == 1 else []
    if len(words) != 2 or words[0].lower() != "token":
        return None
    found = credentials.authenticate_token(words[1])
    if found:
        return Principal.of_token(found[1])
    return None


def has_allowed_host(scope: Scope) -> bool:
    """Whether the only ``Host`` is in ``ALLOWED_HOSTS``."""
    hosts = header_values(scope, "host")
    domain = split_domain_port(hosts[0])[0] if len(hosts) == 1 else ""
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def is_own_origin(scope: Scope, origins: list[str]) -> bool:
    """Whether the only ``Origin`` is this server's own, or one of ``CSRF_TRUSTED_ORIGINS``.

    ``Host`` must be in ``ALLOWED_HOSTS``: to a hostile domain that resolves to this server (DNS rebinding), its own
    name would be the same origin.
    """
    if len(origins) != 1 or not has_allowed_host(scope):
        return False
    origin = _origin_parts(origins[0])
    # The scheme of the page that opens the socket; a trusted proxy may have set it.
    scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
    own = f"{scheme}://{header_values(scope, 'host')[0]}"
    return origin is not None and any(_matches_origin(one, origin) for one in (own, *settings.CSRF_TRUSTED_ORIGINS))


def _matches_origin(known: str, origin: OriginParts) -> bool:
    """Whether an origin matches a known one, which may begin with ``*.`` as in Django's settings."""
    place = _origin_parts(known)
    return place is not None and place[::2] == origin[::2] and is_same_domain(origin[1], place[1].removeprefix("*"))


def _origin_parts(origin: str) -> OriginParts | None:
    """Split an origin; None if it is not one, like ``null``."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme, parts.hostname
    if scheme not in _PORTS or not host or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return None
    return scheme, host, str(port) if port is not None else _PORTS[scheme]
