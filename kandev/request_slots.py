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
from sessions_app.mcp_server.endpoint import PATHS as MCP_PATHS
from sessions_app.stream.live.authentication import REMEMBER_USER, remember_user

MAX_REQUESTS: Final = 60
"""Requests that a web process handles at once."""
MAX_PER_CALLER: Final = 8
"""Requests of one caller that are handled at once; a browser sends six."""
MAX_PER_NETWORK: Final = 3
"""Requests of one network without a known user that are handled at once: a request of anyone else gets at least a
quarter of the processor that the threads of a process share, not a ninth."""
MAX_WAITING: Final = 100
"""Requests of one user that wait for a slot; more are refused."""
MAX_WAITING_UNKNOWN: Final = 5000
"""Requests of one network without a known user that wait: all tabs of all users behind a proxy or a router, after the
web process started. Pages would be refused if the sockets of hundreds of tabs waited before them."""
_NETWORK: Final = b"network "
"""What the names of callers begin with that are networks."""
_MAX_REMEMBERED: Final = 10_000
"""Credentials whose users are remembered."""
_API_PATH: Final = "/api/"
"""Where tokens count; on pages only the session cookie does."""
_PROBE_PATHS: Final = ("/healthz", "/readyz", "/metrics")
"""Paths that do not wait for pages and the API: each has slots of its own, in which networks take turns. Metrics may
wait for a database that hangs: if a web process did not answer ``/healthz`` meanwhile, it would be restarted for that.
"""
MAX_PROBES: Final = 4
MAX_PROBES_PER_NETWORK: Final = 2
_REFUSAL: Final = b'{"code":"throttled","message":"There are too many requests at once. Try again.","details":{}}'

Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class _Turns:
    """The waiting requests of one caller. Its credentials take turns: those of a network are of many users."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[bytes, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, credential: bytes, turn: asyncio.Future[None]) -> None:
        """Add a request."""
        self._waiting.setdefault(credential, deque()).append(turn)
        self._count += 1

    def popleft(self) -> asyncio.Future[None]:
        """Remove and return the request whose turn it is."""
        credential, turns = self._waiting.popitem(last=False)
        turn = turns.popleft()
        if turns:
            self._waiting[credential] = turns
        self._count -= 1
        return turn


class RequestSlots:
    """The slots of a process. Callers that wait get them in turn, whatever number of requests each of them has."""

    def __init__(self, most: int = MAX_REQUESTS, per_caller: int = MAX_PER_CALLER):
        self._free, self._per_caller = most, per_caller
        self._per_network = min(per_caller, MAX_PER_NETWORK)
        self._held: dict[bytes, int] = {}
        self._waiting: OrderedDict[bytes, _Turns] = OrderedDict()
        """Those who wait, by caller; the caller whose turn is next comes first."""

    async def acquire(self, caller: bytes, most_waiting: int = MAX_WAITING, credential: bytes = b"") -> bool:
        """Wait for a slot; return False if ``most_waiting`` of the caller's requests wait already."""
        turns = self._waiting.setdefault(caller, _Turns())
        if len(turns) >= most_waiting:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns.append(credential, turn)
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

    def _limit_of(self, caller: bytes) -> int:
        if caller.startswith(_NETWORK):
            return self._per_network
        return self._per_caller

    def _grant(self) -> None:
        """Give free slots to the callers that wait, one to each in turn."""
        passed = 0
        while self._free and passed < len(self._waiting):
            caller, turns = next(iter(self._waiting.items()))
            self._waiting.move_to_end(caller)
            if self._held.get(caller, 0) >= self._limit_of(caller):
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


class _HeldSlot:
    """A slot that is given back once, however often it is released."""

    def __init__(self, slots: RequestSlots, caller: bytes):
        self._slots, self._caller = slots, caller
        self._is_held = True

    def release(self) -> None:
        """Give the slot back, unless that has happened."""
        if self._is_held:
            self._is_held = False
            self._slots.release(self._caller)


class RequestSlotsMiddleware:
    """ASGI middleware that handles a limited number of requests at once.

    A caller is a user, or a network if the request has no credential of a known user: a credential is known once it
    has been accepted. Otherwise whoever invents many credentials would be many callers. A response that has begun needs
    no slot: a stream of events can last for hours. Nor do WebSockets and calls of the MCP server once they are
    authenticated: they have limits of their own.
    """

    def __init__(self, inner: Application, session_cookie: str, slots: RequestSlots | None = None):
        self._inner, self._slots = inner, slots or RequestSlots()
        self._probe_slots = {path: RequestSlots(MAX_PROBES, MAX_PROBES_PER_NETWORK) for path in _PROBE_PATHS}
        self._cookie = session_cookie
        self._users: OrderedDict[bytes, bytes] = OrderedDict()
        """Users by credential: one may have many tokens and logins, and is still one caller."""

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
            return
        if scope["path"] in _PROBE_PATHS:
            slots, credential = self._probe_slots[scope["path"]], b""
        else:
            slots, credential = self._slots, credential_of(scope, self._cookie)
        user = self._users.get(credential)
        caller = user or _network_of(scope)
        max_waiting = MAX_WAITING if user else MAX_WAITING_UNKNOWN
        if not await slots.acquire(caller, max_waiting, credential):
            await _refuse(scope, send)
            return
        slot = _HeldSlot(slots, caller)

        async def send_and_release(message: Scope) -> None:
            # A socket is accepted before it is authenticated.
            if message["type"] != "websocket.accept":
                slot.release()
            await send(message)

        def remember(user_id: int) -> None:
            if scope["type"] == "websocket" or scope["path"] in MCP_PATHS:
                slot.release()
            self._remember(credential, user_id)

        try:
            await self._inner(scope | {REMEMBER_USER: remember}, receive, send_and_release)
        finally:
            slot.release()

    def _remember(self, credential: bytes, user_id: int) -> None:
        if not credential:
            return  # a login: what follows without a credential is not this user's
        self._users[credential] = b"user %d" % user_id
        while len(self._users) > _MAX_REMEMBERED:
            self._users.popitem(last=False)


def credential_of(scope: Scope, session_cookie: str) -> bytes:
    """Return a hash of the credential that decides about a request; empty if it has none.

    It is read as those read it who will check it: if a part counted that they ignore, such as a token beside the
    cookie of a page, one user could be many callers. It is not checked yet.
    """
    key = _token_of(scope)
    if not key:
        cookies = parse_cookie(_header(scope, b"cookie").decode("latin-1"))
        key = cookies.get(session_cookie, "").encode()
    if key:
        return hashlib.sha256(key).digest()
    return b""


def _network_of(scope: Scope) -> bytes:
    client = scope.get("client") or ("", 0)
    return _NETWORK + network_of_address(str(client[0])).encode()


def _token_of(scope: Scope) -> bytes:
    """Return the key of ``Authorization: Token KEY``; empty if the session cookie decides."""
    if scope["type"] == "websocket":
        decides, scheme = not _header(scope, b"origin"), b"token"
    elif scope["path"] in MCP_PATHS:
        decides, scheme = True, b"bearer"
    else:
        decides, scheme = scope["path"].startswith(_API_PATH), b"token"
    words = _header(scope, b"authorization").split()
    if decides and words and words[0].lower() == scheme:
        return b" ".join(words[1:])
    return b""


def _header(scope: Scope, name: bytes) -> bytes:
    """Return the value of a header; repeated ones are joined as Django joins them."""
    return b",".join(value for key, value in scope["headers"] if key == name)


async def _refuse(scope: Scope, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": _REFUSAL})


def remember_user_middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[..., HttpResponse]:
    """Return a Django middleware that tells ``RequestSlotsMiddleware`` whose credential a request had."""

    def handle(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        user_id = _user_id_of(request)
        if user_id is not None:
            remember_user(getattr(request, "scope", {}), user_id)
        return response

    return handle


def _user_id_of(request: HttpRequest) -> int | None:
    """Return the id of a user who has been authenticated; None otherwise. Authenticates nobody."""
    user = request.__dict__.get("user")
    if isinstance(user, SimpleLazyObject):
        user = getattr(request, "_cached_user", None)
    found: int | None = getattr(user, "pk", None)
    return found
