"""Authentication of requests (Host header, no browsers, peer user, bearer token), and the JSON shape of errors."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from executors_app.agentctl.drivers import StartFailed
from executors_app.agentctl.http import sockets
from executors_app.agentctl.protocol import ApiError, Code

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNAUTHENTICATED_PATHS: Final = frozenset({"/health"})

_WILDCARD_HOSTS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  (compared with, not bound to)
_CODES_BY_STATUS: Final = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    413: Code.TOO_LARGE,
    500: Code.INTERNAL_ERROR,
}


def json_response(body: Any, status: int = 200) -> web.Response:
    """Return a JSON answer that must not be cached."""
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


def error_response(status: int, code: str, message: str, details: Any = None, **more: Any) -> web.Response:
    """Return an error in the shape of all errors."""
    return json_response({"code": code, "message": message, "details": details or {}, **more}, status)


class AuthMiddleware:
    """The middlewares of a server that listens on ``host:port`` and accepts ``token``.

    ``names`` are further accepted host names, with any port. ``on_contact`` is called for each authenticated request.
    ``users`` are the only user ids whose processes may connect, at a Unix socket.
    """

    def __init__(
        self,
        token: str,
        host: str,
        port: int,
        on_contact: Callable[[], None],
        names: Collection[str] = (),
        *,
        users: Collection[int] | None = None,
    ):
        self._token = token.encode()
        self._users = users
        self._any_address = host in _WILDCARD_HOSTS
        bracketed = f"[{host}]" if ":" in host else host
        known = ("127.0.0.1", "localhost", "[::1]", bracketed, *names)
        self._hosts = {f"{name}:{port}".lower() for name in known} | {name.lower() for name in names}
        self._on_contact = on_contact

    def middlewares(self) -> list[Any]:
        """Return the middlewares, outermost first."""

        @web.middleware
        async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check(request)
            return await handler(request)

        return [error_middleware, authenticate]

    def _check(self, request: web.Request) -> None:
        if self._users is not None and not _is_peer_of(self._users, request):
            raise ApiError(Code.FORBIDDEN_PEER, "processes of another user are not served")
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not self.is_our_host(hosts[0]):
            raise ApiError(Code.FORBIDDEN_HOST, "the Host header does not name this server")
        # Browsers send this header with a web page's WebSockets and with its requests to other sites; no client of
        # ours does.
        if "Origin" in request.headers:
            raise ApiError(Code.FORBIDDEN_ORIGIN, "browsers are not served")
        if request.path not in UNAUTHENTICATED_PATHS:
            self._authenticate(request)
            self._on_contact()

    def is_our_host(self, header: str) -> bool:
        """Whether a Host header names this server; rejects names of web pages that resolve to it (DNS rebinding)."""
        if header.lower() in self._hosts:
            return True
        return self._any_address and _is_address(header)

    def _authenticate(self, request: web.Request) -> None:
        given = request.headers.getall("Authorization", [])
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        same = self.is_valid_token(request, token.strip().encode("utf-8", "surrogateescape"))
        if scheme.lower() != "bearer" or not same:
            raise ApiError(Code.NOT_AUTHENTICATED, "the bearer token is missing or wrong")

    def is_valid_token(self, request: web.Request, bearer: bytes) -> bool:
        """Whether ``bearer`` is the token for this request, compared in constant time."""
        return hmac.compare_digest(bearer, self._token)


def _is_peer_of(users: Collection[int], request: web.Request) -> bool:
    """Whether the peer of a Unix socket is a process of one of these users."""
    connection = None if request.transport is None else request.transport.get_extra_info("socket")
    return connection is not None and sockets.peer_credentials(connection).uid in users


def _is_address(header: str) -> bool:
    name = header.partition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into the shape of all errors."""
    try:
        return await handler(request)
    except Exception as error:
        answer = _response_for(error)
        if answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.exception("%s %s failed", request.method, request.path)
        return answer


def _response_for(error: Exception) -> web.Response:
    match error:
        case ApiError():
            return error_response(error.status, error.code, error.message, error.details)
        case StartFailed():
            flags = {"permanent": error.permanent, "token_valid": error.token_valid}
            return error_response(502, str(error.code), error.message, flags, **flags, told=error.told)
        case web.HTTPException():
            answer = error_response(
                error.status, _CODES_BY_STATUS.get(error.status, Code.VALIDATION_ERROR), error.reason
            )
            answer.headers.extend({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
            return answer
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return error_response(503, Code.JOURNAL_FULL, "the disk is full")
    return error_response(500, Code.INTERNAL_ERROR, "agentctl failed; its log contains the reason")
