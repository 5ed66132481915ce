"""Who may open a socket: a page of this origin by its login, a program by its token, nobody else.

Browsers send cookies with every socket, whoever's page opens it; so the login counts only where
the ``Origin``, which a page cannot choose, is our own. Programs send none, and prove themselves.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

from sessions_app.live.access import Badge
from sessions_app.live.threads import in_database
from sessions_app.services import api_tokens

_PORTS: Final = {"http": "80", "https": "443"}
Scope = dict[str, Any]
Place = tuple[str, str, str]
"""Scheme, host and port."""


async def badge_of(scope: Scope) -> Badge | None:
    """The badge of whoever opens a socket; None for nobody we know."""
    origins = headers(scope, "origin")
    if not origins:
        return await in_database(_by_token, headers(scope, "authorization"))
    user = scope["user"]
    if not is_own_origin(scope, origins) or not user.is_authenticated:
        return None
    return Badge(user.pk, login=scope["session"].session_key, password_mark=user.get_session_auth_hash())


def headers(scope: Scope, name: str) -> list[str]:
    """Every value of a header."""
    wanted = name.encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def _by_token(given: list[str]) -> Badge | None:
    words = given[0].split() if len(given) == 1 else []
    if len(words) != 2 or words[0].lower() != "token":
        return None
    found = api_tokens.holder_of(words[1])
    return Badge.of_token(found[1]) if found else None


def is_own_origin(scope: Scope, origins: list[str]) -> bool:
    """Whether the one ``Origin`` is where this socket was asked for, or trusted by name.

    The host must be one that is served: a name that was made to point here is its own origin too.
    """
    hosts = headers(scope, "host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    domain, _ = split_domain_port(hosts[0])
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    origin = _place(origins[0])
    own = f"{_scheme(scope)}://{hosts[0]}"
    return origin is not None and any(_covers(one, origin) for one in (own, *settings.CSRF_TRUSTED_ORIGINS))


def _scheme(scope: Scope) -> str:
    """How the page was asked for; a trusted proxy has said so."""
    return "https" if scope.get("scheme") in ("https", "wss") else "http"


def _covers(known: str, origin: Place) -> bool:
    """Whether an origin is one that we know; a known one may begin with ``*.``, as Django has it."""
    place = _place(known)
    return place is not None and place[::2] == origin[::2] and is_same_domain(origin[1], place[1].removeprefix("*"))


def _place(origin: str) -> Place | None:
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
