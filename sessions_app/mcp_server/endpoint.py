"""The ASGI application at ``/mcp``: admits a request as the REST API would, then hands it to the MCP SDK."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from django.contrib.auth.models import User
from rest_framework.exceptions import AuthenticationFailed, MethodNotAllowed, NotAuthenticated

from sessions_app.accounts import credentials
from sessions_app.accounts.api.authentication import WRONG_KEY_MESSAGE, count_wrong_token_from
from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.errors import ErrorResponse, PayloadTooLarge, error_response
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.mcp_server.size_limit import ClientDisconnected, receive_message
from sessions_app.stream.live.authentication import (
    Principal,
    has_allowed_host,
    header_values,
    is_own_origin,
    remember_user,
)

Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
PATHS: Final = ("/mcp", "/mcp/")
_PROTOCOL: Final = "sessions_app.mcp_server.protocol"


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, restricted to what their token allows, and the credential that the hub watches."""

    user: User
    principal: Principal


class McpEndpoint:
    """ASGI middleware that serves MCP at ``/mcp``, and passes everything else on."""

    def __init__(self, inner: Application):
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one HTTP request."""
        if scope["path"] not in PATHS:
            await self._inner(scope, receive, send)
            return
        try:
            caller = await _admit(scope)
            remember_user(scope, caller.principal.user_id)
            receive = await receive_message(receive)
            # In a thread, and only at the first request: this import takes a second.
            protocol = await asyncio.to_thread(importlib.import_module, _PROTOCOL)
        except ClientDisconnected:
            return
        except Exception as error:  # noqa: BLE001 - every error becomes a response with a code
            await _respond(_response_to(error), send)
            return
        await protocol.serve_request({**scope, protocol.CALLER: caller}, receive, send)


async def _admit(scope: Scope) -> Caller:
    """Return the caller. Raises the REST framework's errors, and Throttled."""
    # Browsers send the page's origin: a page of another site may neither use a token here nor guess one.
    origins = header_values(scope, "origin")
    if not has_allowed_host(scope) or (origins and not is_own_origin(scope, origins)):
        raise ForeignOrigin
    # There is no stream of its own to GET, and no session to DELETE.
    if scope["method"] != "POST":
        raise MethodNotAllowed(scope["method"])
    if any(int(size) > MAX_BODY for size in header_values(scope, "content-length") if size.isdecimal()):
        raise PayloadTooLarge
    address = (scope.get("client") or [""])[0] or ""
    return await run_in_database(_authenticate, header_values(scope, "authorization"), address)


class ForeignOrigin(PermissionError):
    """The Host or the Origin of the request is not this server's."""


def _authenticate(headers: list[str], address: str) -> Caller:
    words = " ".join(headers).split()
    if len(headers) != 1 or len(words) != 2 or words[0].lower() != "bearer":
        raise NotAuthenticated("Send an API token as “Authorization: Bearer TOKEN”.")
    authenticated = credentials.authenticate_token(words[1])
    if authenticated is None:
        count_wrong_token_from(address)
        raise AuthenticationFailed(WRONG_KEY_MESSAGE)
    user, token = authenticated
    return Caller(user, Principal.of_token(token))


def _response_to(error: Exception) -> ErrorResponse:
    if isinstance(error, ForeignOrigin):
        return ErrorResponse.from_code("permission_denied", str(ForeignOrigin.__doc__))
    if isinstance(error, NotAuthenticated | AuthenticationFailed):
        return ErrorResponse(401, "not_authenticated", str(error.detail), {}, {"WWW-Authenticate": "Bearer"})
    if isinstance(error, MethodNotAllowed):
        return ErrorResponse(405, "method_not_allowed", str(error.detail), {}, {"Allow": "POST"})
    return error_response(error, "an MCP request")


async def _respond(answer: ErrorResponse, send: Any) -> None:
    body = json.dumps(answer.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    pairs = [(name.lower().encode(), value.encode()) for name, value in {**headers, **answer.headers}.items()]
    await send({"type": "http.response.start", "status": HTTPStatus(answer.status), "headers": pairs})
    await send({"type": "http.response.body", "body": body})
