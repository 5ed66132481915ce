"""Limit how many requests are handled at once, and share these slots between callers.

Each request has a thread and, on PostgreSQL, a connection to the database, and all threads of a process share one
processor. Without a limit, a single user with hundreds of parallel requests would use up the connections that everyone
needs, and everyone else would wait for that user's pages.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.cookie import parse_cookie
from django.utils.functional import SimpleLazyObject

from sessions_app.accounts.client_address import network_of_address

MAX_REQUESTS: Final = 60
"""Requests that a web process handles at once."""
MAX_PER_CALLER: Final = 8
"""Requests of one caller that are handled at once; a browser sends six."""
MAX_WAITING: Final = 100
"""Requests of one user that wait for a slot; more are refused."""
MAX_WAITING_UNKNOWN: Final = 1000
"""Requests of one network without a known user that wait: all users behind a proxy, after the web process started."""
_MAX_REMEMBERED: Final = 10_000
"""Credentials whose users are remembered."""
_API_PATH: Final = "/api/"
"""Where tokens count; everywhere else only the session cookie does."""
_PROBE_PATHS: Final = frozenset({"/healthz", "/metrics"})
"""Paths that do not wait for pages and the API: they have slots of their own, in which networks take turns."""
MAX_PROBES: Final = 4
MAX_PROBES_PER_NETWORK: Final = 2
_REMEMBER: Final = "kandev.remember_user"
_REFUSAL: Final = b'{"code":"throttled","message":"There are too many requests at once. Try again.","details":{}}'

Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class RequestSlots:
    """The slots of a process. Callers that wait get them in turn, whatever number of requests each of them has."""

    def __init__(self, most: int = MAX_REQUESTS, per_caller: int = MAX_PER_CALLER):
        self._free, self._per_caller = most, per_caller
        self._held: dict[bytes, int] = {}
        self._waiting: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        """Those who wait, by caller; the caller whose turn is next comes first."""

    async def acquire(self, caller: bytes, most_waiting: int = MAX_WAITING) -> bool:
        """Wait for a slot; return False if ``most_waiting`` of the caller's requests wait already."""
        turns = self._waiting.setdefault(caller, deque())
        if len(turns) >= most_waiting:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns.append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(caller)
            raise
        return True

    def release(self, caller: bytes) -> None:
        """Give a slot back."""
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._grant()

    def _grant(self) -> None:
        """Give free slots to the callers that wait, one to each in turn."""
        passed = 0
        while self._free and passed < len(self._waiting):
            caller, turns = next(iter(self._waiting.items()))
            self._waiting.move_to_end(caller)
            if self._held.get(caller, 0) >= self._per_caller:
                passed += 1
                continue
            passed = 0
            turn = turns.popleft()
            if not turns:
                del self._waiting[caller]
            if not turn.cancelled():
                self._free -= 1
                self._held[caller] = self._held.get(caller, 0) + 1
                turn.set_result(None)


class RequestSlotsMiddleware:
    """ASGI middleware that handles a limited number of requests at once.

    A caller is a user, or a network if the request has no credential of a known user: a credential is known once it
    has been accepted. Otherwise whoever invents many credentials would be many callers. A response that has begun needs
    no slot: a stream of events can last for hours.
    """

    def __init__(self, inner: Application, session_cookie: str, slots: RequestSlots | None = None):
        self._inner, self._slots = inner, slots or RequestSlots()
        self._probe_slots = RequestSlots(MAX_PROBES, MAX_PROBES_PER_NETWORK)
        self._cookie = session_cookie
        self._users: OrderedDict[bytes, bytes] = OrderedDict()
        """Users by credential: one may have many tokens and logins, and is still one caller."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        is_probe = scope["path"] in _PROBE_PATHS
        slots = self._probe_slots if is_probe else self._slots
        credential = b"" if is_probe else credential_of(scope, self._cookie)
        user = self._users.get(credential)
        caller = user or _network_of(scope)
        if not await slots.acquire(caller, MAX_WAITING if user else MAX_WAITING_UNKNOWN):
            await _refuse(send)
            return
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                slots.release(caller)

        async def send_and_release(message: Scope) -> None:
            release()
            await send(message)

        def remember_user(user_id: int) -> None:
            if not credential:
                return  # a login: what follows without a credential is not this user's
            self._users[credential] = b"user %d" % user_id
            while len(self._users) > _MAX_REMEMBERED:
                self._users.popitem(last=False)

        try:
            await self._inner({**scope, _REMEMBER: remember_user}, receive, send_and_release)
        finally:
            release()


def credential_of(scope: Scope, session_cookie: str) -> bytes:
    """Return a hash of the credential that decides about a request; empty if it has none.

    It is read as Django and REST framework read it: if a part counted that they ignore, such as a token beside the
    cookie of a page, one user could be many callers. It is not checked yet.
    """
    key = _token_of(scope) if scope["path"].startswith(_API_PATH) else b""
    if not key:
        cookies = parse_cookie(_header(scope, b"cookie").decode("latin-1"))
        key = cookies.get(session_cookie, "").encode()
    return hashlib.sha256(key).digest() if key else b""


def _network_of(scope: Scope) -> bytes:
    client = scope.get("client") or ("", 0)
    return b"network " + network_of_address(str(client[0])).encode()


def _token_of(scope: Scope) -> bytes:
    """Return the key of ``Authorization: Token KEY``; empty if the session cookie decides."""
    words = _header(scope, b"authorization").split()
    return b" ".join(words[1:]) if words and words[0].lower() == b"token" else b""


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header; repeated ones are joined as Django joins them."""
    return b",".join(value for key, value in scope["headers"] if key == name)


async def _refuse(send: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})


def remember_user_middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Return a Django middleware that tells ``RequestSlotsMiddleware`` whose credential a request had."""

    def handle(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        remember = getattr(request, "scope", {}).get(_REMEMBER)
        user_id = _user_id_of(request)
        if remember is not None and user_id is not None:
            remember(user_id)
        return response

    return handle


def _user_id_of(request: HttpRequest) -> int | None:
    """Return the id of a user who has been authenticated; None otherwise. Authenticates nobody."""
    user = request.__dict__.get("user")
    if isinstance(user, SimpleLazyObject):
        user = getattr(request, "_cached_user", None)
    found: int | None = getattr(user, "pk", None)
    return found
