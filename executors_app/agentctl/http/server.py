"""The HTTP API of agentctl except the workspace: check a request, carry out its command, and shape the answer.

A request needs the right Host header, peer user and bearer token, and must not come from a browser. Every known field
is checked, unknown ones are ignored.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import orjson
from aiohttp import web

from executors_app.agentctl.drivers import LoginRequest, StartFailed, StartRequest, Strategy
from executors_app.agentctl.http.connections import admit_connection
from executors_app.agentctl.process.job_process import KEPT_BYTES
from executors_app.machine import sockets
from executors_app.wire.agent_settings import is_identifier
from executors_app.wire.protocol import GENERATION_HEADER, ApiError, Code, LoginAction, validation_error

if TYPE_CHECKING:
    from executors_app.agentctl.http.event_streams import EventStreams
    from executors_app.agentctl.sidecar import Sidecar

logger = logging.getLogger(__name__)

BODY_LIMIT: Final = 16 << 20
_GRACE: Final = 5.0
MAX_JOB_WAIT: Final = 25.0
"""Maximum seconds that a request waits for the end of a job."""

_PERMISSION: Final = "/permissions/{id}"
_JOB: Final = "/jobs/{id}"
_CANCELLED_JOB: Final = f"{_JOB}/cancel"

Command = Callable[[web.Request, dict[str, Any]], Awaitable[Any]]
Report = Callable[[], Any]


class CommandApi:
    """The endpoints of the agent, its prompts, its jobs and its journal."""

    def __init__(self, sidecar: Sidecar, streams: EventStreams):
        self._sidecar, self._streams = sidecar, streams

    def routes(self) -> list[web.RouteDef]:
        """Return all routes except those of the workspace."""
        sidecar = self._sidecar
        return [
            web.get("/health", self._report(sidecar.health)),
            web.get("/capabilities", self._report(sidecar.capabilities)),
            web.get("/status", self._report(sidecar.status)),
            web.get("/agent/session", self._report(sidecar.agent_session)),
            web.get("/agent/left", self._report(sidecar.killed_processes)),
            web.post("/agent/start", self._command(self._start)),
            web.post("/agent/stop", self._command(self._stop)),
            web.post("/prompt", self._command(self._prompt, status=202)),
            web.post("/steer", self._command(self._steer, status=202)),
            web.post("/cancel", self._command(self._cancel)),
            web.post("/settings", self._command(self._change_setting, status=202)),
            web.post(_PERMISSION, self._command(self._answer)),
            web.post("/jobs", self._command(self._start_job)),
            web.get(_JOB, self._job),
            web.post(_CANCELLED_JOB, self._command(self._cancel_job)),
            web.post("/shutdown", self._command(self._shutdown)),
            web.get("/events", self._streams.serve, allow_head=False),
        ]

    # -- the three kinds of endpoints --------------------------------------------------------

    def _report(self, report: Report) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            return json_response(report())

        return handle

    def _command(self, command: Command, status: int = 200) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            generation = read_generation(request)
            body = await read_json_object(request)
            # Checked after the body has arrived: nothing may run between this check and the command.
            self._sidecar.fence.admit(generation)
            return json_response(await command(request, body), status)

        return handle

    # -- commands ----------------------------------------------------------------------------

    async def _start(self, request: web.Request, body: dict[str, Any]) -> Any:
        order = parse_start_request(body, self._sidecar.execution.workspace)
        await self._sidecar.prepare_workspace()
        answer = await self._sidecar.agent.start(order)
        workspace = self._sidecar.workspace
        rebuilt = {"rebuild_note": workspace.rebuild_note} if workspace.rebuild_note else {}
        return {**answer, "workspace": {**await workspace.call(workspace.head), **rebuilt}}

    async def _stop(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.stop(
            parse_seconds(body, "grace", _GRACE),
            parse_identifier(body, "intent_id", ""),
            delete_transcript=parse_flag(body, "delete_transcript", default=False),
        )

    async def _prompt(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.turns.accept(
            parse_identifier(body, "message_id"),
            parse_text(body, "text"),
            parse_objects(body, "attachments"),
            parse_identifier(body, "prompt_kind", "user"),
        )

    async def _steer(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.steering.accept(
            self._sidecar.turns.driver,
            parse_identifier(body, "message_id"),
            parse_identifier(body, "turn"),
            parse_text(body, "text"),
            parse_objects(body, "attachments"),
        )

    async def _cancel(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.cancel(parse_identifier(body, "message_id"))

    async def _change_setting(self, request: web.Request, body: dict[str, Any]) -> Any:
        change = parse_setting_change(body)
        return await self._sidecar.settings.request(
            self._sidecar.agent.driver(), change["change_id"], change["setting"], change["value"]
        )

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> Any:
        permission_id = request.match_info["id"]
        if body.get("option_id", "") is None:
            return await self._sidecar.permissions.expire(permission_id)
        return await self._sidecar.permissions.answer(
            permission_id, parse_text(body, "option_id"), parse_optional_object(body, "content")
        )

    async def _start_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        report = _parse_report(request.query)
        job_id = self._sidecar.jobs.start_requested(body)
        return await self._sidecar.jobs.report(job_id, *report)

    async def _job(self, request: web.Request) -> web.Response:
        report = _parse_report(request.query)
        return json_response(await self._sidecar.jobs.report(request.match_info["id"], *report))

    async def _cancel_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.jobs.cancel(request.match_info["id"])

    async def _shutdown(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.shutdown(
            parse_flag(body, "stop_agent", default=False), parse_identifier(body, "intent_id", "")
        )


def _parse_report(query: Mapping[str, str]) -> tuple[float, int]:
    """Return for how long to wait for a job's end, and how many bytes of each stream to report."""
    return parse_wait(query, "wait", MAX_JOB_WAIT), parse_number(query.get("tail", str(KEPT_BYTES)), "tail")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UNAUTHENTICATED_PATHS: Final = frozenset({"/health"})

HEARTBEAT_INTERVAL: Final = 30.0
CLOSE_TIMEOUT: Final = 2.0
"""Seconds to wait for the close frame of a WebSocket's other end."""
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


def websocket_for(request: web.Request, message_limit: int) -> web.WebSocketResponse:
    """Return the WebSocket that a request asks for, not prepared yet; raises HTTPBadRequest if it asks for none."""
    socket = web.WebSocketResponse(
        compress=False, heartbeat=HEARTBEAT_INTERVAL, max_msg_size=message_limit, timeout=CLOSE_TIMEOUT
    )
    if not socket.can_prepare(request).ok:
        raise web.HTTPBadRequest(reason="this endpoint is a WebSocket")
    return socket


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
        others = [_with_brackets(name) for name in names]
        known = ("127.0.0.1", "localhost", "[::1]", _with_brackets(host), *others)
        self._hosts = {f"{name}:{port}".lower() for name in known} | {name.lower() for name in others}
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
            admit_connection(request)
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
    if request.transport is None:
        connection = None
    else:
        connection = request.transport.get_extra_info("socket")
    return connection is not None and sockets.peer_credentials(connection).uid in users


def host_of(authority: str) -> str:
    """Return the host of ``HOST`` or ``HOST:PORT``; an IPv6 address may be in brackets, and has them before a port."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    host, _, port = authority.partition(":")
    if ":" in port:
        return authority
    return host


def _with_brackets(name: str) -> str:
    """Return a name as in a Host header; only an IPv6 address without brackets is changed."""
    is_plain_address = ":" in name and host_of(name) == name
    if is_plain_address:
        return f"[{name}]"
    return name


def _is_address(header: str) -> bool:
    try:
        ipaddress.ip_address(host_of(header))
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


_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_COMMITS: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MAX_START_TIMEOUT: Final = 600.0
_MAX_GRACE: Final = 60.0


async def read_json_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object of the body; an empty body is an empty object."""
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except ValueError as error:
        raise validation_error("the body is not JSON") from error
    if not isinstance(body, dict):
        raise validation_error("the body is not a JSON object")
    return body


def read_generation(request: web.Request) -> int:
    """Return the generation in the header of a command."""
    return parse_number(request.headers.get(GENERATION_HEADER), GENERATION_HEADER)


def parse_number(text: str | None, name: str) -> int:
    """Parse a non-negative whole number from a header or a query."""
    if text is None or not _NUMBER.fullmatch(text):
        raise validation_error(f"{name} must be a whole number", field=name)
    return int(text)


def parse_wait(query: Mapping[str, str], name: str, most: float) -> float:
    """Parse seconds from 0 to ``most`` in a query; 0 by default."""
    try:
        value = float(query.get(name, "0"))
    except ValueError:
        value = math.nan
    return parse_seconds({name: value}, name, 0, most)


def parse_identifier(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return an id: 1 to 200 printable ASCII characters without spaces."""
    value = body.get(name, default)
    if isinstance(value, str) and (_ID.fullmatch(value) or value == default):
        return value
    raise _field_error(name, "must be an id of 1 to 200 printable characters")


def parse_text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a string."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _field_error(name, "must be a string")
    return value


def parse_seconds(body: Mapping[str, Any], name: str, default: float, most: float = _MAX_GRACE) -> float:
    """Return seconds from 0 to ``most``."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _field_error(name, "must be a number of seconds")
    if not 0 <= value <= most:
        raise _field_error(name, f"must be between 0 and {most:g} seconds")
    return float(value)


def parse_flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean."""
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise _field_error(name, "must be true or false")
    return value


def parse_objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects; empty by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _field_error(name, "must be a list of objects")
    return value


def parse_setting_change(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change of a setting: ``{"change_id", "setting", "value"}``."""
    setting, value = body.get("setting"), body.get("value")
    if not is_identifier(setting):
        raise _field_error("setting", "must be the id of a setting")
    if not isinstance(value, bool) and not is_identifier(value):
        raise _field_error("value", "must be true, false or the id of a choice")
    return {"change_id": parse_identifier(body, "change_id"), "setting": setting, "value": value}


def parse_optional_object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a JSON object; empty by default."""
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise _field_error(name, "must be an object")
    return value


def _parse_count(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _field_error(name, "must be a number of things")
    return value


def parse_start_request(body: Mapping[str, Any], workspace: Path) -> StartRequest:
    """Check the body of ``POST /agent/start``."""
    strategy: Strategy = parse_text(body, "strategy", "fresh")  # type: ignore[assignment]
    mode: Literal["ask", "auto_approve"] = parse_text(body, "permission_mode", "ask")  # type: ignore[assignment]
    _parse_choice("strategy", strategy, get_args(Strategy))
    _parse_choice("permission_mode", mode, ("ask", "auto_approve"))
    request = StartRequest(
        launch_id=parse_identifier(body, "launch_id"),
        argv=_parse_argv(body),
        env=parse_environment(body, "env"),
        cwd=_check_directory(parse_text(body, "cwd", "") or str(workspace), "cwd"),
        strategy=strategy,
        driver=parse_text(body, "driver", "acp"),
        resume_token=_parse_optional_text(body, "resume_token"),
        model=_parse_optional_text(body, "model"),
        mode=_parse_optional_text(body, "mode"),
        additional_directories=[
            _check_directory(path, "additional_directories") for path in parse_texts(body, "additional_directories")
        ],
        mcp_servers=parse_objects(body, "mcp_servers"),
        settings=[parse_setting_change(each) for each in parse_objects(body, "settings")],
        permission_mode=mode,
        gone_patterns=_parse_patterns(body),
        prefer_load=parse_flag(body, "prefer_load", default=True),
        last_message_uuid=_parse_optional_text(body, "last_message_uuid"),
        timeout=parse_seconds(body, "timeout", 60.0, _MAX_START_TIMEOUT),
        load_timeout=parse_seconds(body, "load_timeout", 0.0, _MAX_START_TIMEOUT),
        expected_requests=_parse_count(body, "expected_requests"),
        known_conversations=frozenset(parse_texts(body, "known_conversations")),
        login=_parse_login(parse_optional_object(body, "login")),
    )
    if strategy == "native" and not request.resume_token:
        raise _field_error("resume_token", "is required for the strategy native")
    return request


def _parse_login(login: Mapping[str, Any]) -> LoginRequest | None:
    if not login:
        return None
    action, method = parse_text(login, "action", ""), parse_text(login, "method", "")
    _parse_choice("login.action", action, tuple(LoginAction))
    if action == LoginAction.LOGIN and not is_identifier(method):
        raise _field_error("login.method", "must be the id of a method")
    return LoginRequest(action, method, parse_seconds(login, "timeout", 60.0, _MAX_START_TIMEOUT))


def _parse_argv(body: Mapping[str, Any]) -> list[str]:
    argv = parse_texts(body, "argv")
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise _field_error("argv", "must start with an executable and contain no U+0000")
    return argv


def parse_environment(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return environment variables by name; empty by default."""
    env = body.get(name) or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) and "\0" not in value for value in env.values()):
        raise _field_error(name, "must map names to strings")
    if any(not variable or "=" in variable or "\0" in variable for variable in env):
        raise _field_error(name, "contains an invalid name")
    return env


def _check_directory(path: str, name: str) -> str:
    if "\0" in path or not Path(path).is_absolute() or not Path(path).is_dir():
        raise _field_error(name, "must be the absolute path of an existing directory")
    return path


def _parse_patterns(body: Mapping[str, Any]) -> list[str]:
    patterns = parse_texts(body, "gone_patterns")
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error as error:
        raise _field_error("gone_patterns", "must be regular expressions") from error
    return patterns


def parse_texts(body: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of strings; empty by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _field_error(name, "must be a list of strings")
    return value


def _parse_optional_text(body: Mapping[str, Any], name: str) -> str | None:
    if body.get(name) is None:
        return None
    return parse_text(body, name)


def _parse_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _field_error(name, f"must be one of {', '.join(allowed)}")


def _field_error(name: str, why: str) -> Exception:
    return validation_error(f"{name} {why}", field=name)


def parse_commits(body: Mapping[str, Any]) -> list[str]:
    """Return the commit ids in ``known``."""
    found = parse_texts(body, "known")
    if len(found) > _MAX_COMMITS or not all(map(_COMMIT.fullmatch, found)):
        raise _field_error("known", f"must be up to {_MAX_COMMITS} commit ids")
    return found
