"""Who may open a socket and keep it.

Authentication by login or API token, periodic re-checks, and the close codes.
"""

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
from sessions_app.models import Task, TaskSession
from sessions_app.services.database_threads import run_in_database
from sessions_app.services.errors import NotFound


class CloseCode(IntEnum):
    """What a client that loses its socket is told; after *slow* and those behind it it may come back."""

    ENDED = 1000
    """The shell has."""
    INVALID = 4400
    """Of a shell: no such size or name."""
    NOT_AUTHENTICATED = 4401
    FORBIDDEN = 4403
    """Seen, but not for this user to operate: shells where agents are not isolated."""
    NOT_FOUND = 4404
    """Not there, or not the user's."""
    SLOW = 4408
    """It left too much unacknowledged: come back with ``?after=``."""
    OVERTAKEN = 4410
    """The same shell was opened elsewhere."""
    TOO_MANY = 4429
    UNREACHABLE = 4503
    """The database, or of a shell the session's agentctl, does not answer."""
    FAILED = 1011


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, and what let them in: the key of a login, or the hash of a token's."""

    user_id: int
    login: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    password_fingerprint: str = field(default="", repr=False)
    """Changes with the user's password, which ends every login."""
    is_read_only: bool = False
    """Whether the token is one that changes nothing."""

    @classmethod
    def of_token(cls, token: ApiToken) -> Principal:
        """What a key of the API gives."""
        return cls(token.user_id, token=token.secret_hash, is_read_only=token.reads_only)

    def user(self) -> Any:
        """The user as of now; NotFound if they are not active any more."""
        found = get_user_model().objects.filter(pk=self.user_id, is_active=True).first()
        if found is None:
            raise NotFound
        return user_with_token_scope(found, reads_only=self.is_read_only)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Somebody's place at a session, or at all sessions of a task."""

    principal: Principal
    task_id: uuid.UUID
    session_id: uuid.UUID | None = None


def revoked_subscriptions(subscriptions: Collection[Subscription]) -> dict[Subscription, CloseCode]:
    """Whose subscription is lost and why; a constant number of statements."""
    # In this order: a user who is deleted in between has lost the login, and not just the place.
    open_places = _load_visible_rows(subscriptions)
    known = _valid_principals({subscription.principal for subscription in subscriptions})
    return {
        subscription: CloseCode.NOT_FOUND if subscription.principal in known else CloseCode.NOT_AUTHENTICATED
        for subscription in subscriptions
        if subscription.principal not in known or not open_places.has(subscription)
    }


def _valid_principals(principals: Collection[Principal]) -> set[Principal]:
    """Those whose user is active and whose login or token is still good."""
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


@dataclass(frozen=True, slots=True)
class _VisibleRows:
    """What is there, and who is in the team of which task."""

    sessions: set[uuid.UUID]
    members: set[tuple[uuid.UUID, int]]

    def has(self, subscription: Subscription) -> bool:
        there = subscription.session_id is None or subscription.session_id in self.sessions
        return there and (subscription.task_id, subscription.principal.user_id) in self.members


def _load_visible_rows(subscriptions: Collection[Subscription]) -> _VisibleRows:
    """For many users at once what ``visible_to`` says for one."""
    tasks = Task.objects.filter(
        id__in={subscription.task_id for subscription in subscriptions},
        team__user__in={subscription.principal.user_id for subscription in subscriptions},
    )
    sessions = TaskSession.objects.filter(
        id__in={subscription.session_id for subscription in subscriptions if subscription.session_id}
    )
    return _VisibleRows(set(sessions.values_list("id", flat=True)), set(tasks.values_list("id", "team__user")))


_PORTS: Final = {"http": "80", "https": "443"}
Scope = dict[str, Any]
OriginParts = tuple[str, str, str]
"""Scheme, host and port."""


async def authenticate(scope: Scope) -> Principal | None:
    """The principal of whoever opens a socket; None for nobody we know."""
    origins = header_values(scope, "origin")
    if not origins:
        return await run_in_database(_authenticate_token, header_values(scope, "authorization"))
    user = scope["user"]
    if not is_own_origin(scope, origins) or not user.is_authenticated:
        return None
    return Principal(user.pk, login=scope["session"].session_key, password_fingerprint=user.get_session_auth_hash())


def header_values(scope: Scope, name: str) -> list[str]:
    """Every value of a header."""
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def _authenticate_token(given: list[str]) -> Principal | None:
    words = given[0].split() if len(given) == 1 else []
    if len(words) != 2 or words[0].lower() != "token":
        return None
    found = credentials.authenticate_token(words[1])
    return Principal.of_token(found[1]) if found else None


def is_own_origin(scope: Scope, origins: list[str]) -> bool:
    """Whether the one ``Origin`` is where this socket was asked for, or trusted by name.

    The host must be one that is served: a name that was made to point here is its own origin too.
    """
    hosts = header_values(scope, "host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    domain, _ = split_domain_port(hosts[0])
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    origin = _origin_parts(origins[0])
    own = f"{_scheme(scope)}://{hosts[0]}"
    return origin is not None and any(_matches_origin(one, origin) for one in (own, *settings.CSRF_TRUSTED_ORIGINS))


def _scheme(scope: Scope) -> str:
    """How the page was asked for; a trusted proxy has said so."""
    return "https" if scope.get("scheme") in ("https", "wss") else "http"


def _matches_origin(known: str, origin: OriginParts) -> bool:
    """Whether an origin is one that we know; a known one may begin with ``*.``, as Django has it."""
    place = _origin_parts(known)
    return place is not None and place[::2] == origin[::2] and is_same_domain(origin[1], place[1].removeprefix("*"))


def _origin_parts(origin: str) -> OriginParts | None:
    """The place of an origin; None for what is none, as ``null``."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    scheme, host = parts.scheme, parts.hostname
    if scheme not in _PORTS or not host or parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        return None
    return scheme, host, str(port) if port is not None else _PORTS[scheme]
