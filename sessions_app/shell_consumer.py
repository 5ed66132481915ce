"""A shell of a session's workspace, for a browser: ``/ws/sessions/{id}/shell/?cols=&rows=`` (interfaces 5).

Bytes go through both ways as they are. Texts are JSON: from agentctl ``{"shell", "offset", "running"}``
first and ``{"exit"}`` last, from the client ``{"resize": [cols, rows]}``, and ``{"ack": BYTES}``, all that
it has taken in so far: who leaves 16 MiB unacknowledged is closed with 4408, and finds the shell's
scrollback when it comes back. (The web server itself takes whatever is sent, and buffers it.)
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

from executors_app.client import AgentctlClient, ShellStream
from executors_app.errors import AgentctlRefused, ExecutorError
from sessions_app.accounts.authorization import may_operate
from sessions_app.consumers import AsgiMessage, AsgiReceive, AsgiSend, parse_uuid
from sessions_app.live.authentication import CloseCode, Principal, Subscription, authenticate, revoked_subscriptions
from sessions_app.live.log_reader import find_session
from sessions_app.services.database_threads import run_in_database
from sessions_app.services.errors import Invalid, NotFound, ReadOnly, SessionsError
from sessions_app.services.workspace import agentctl_client

log = logging.getLogger(__name__)

ACCESS_CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks of the user's access."""
FLOW_CONTROL_WINDOW: Final = 16 << 20
"""Bytes on their way that no acknowledgement came for."""
MAX_TERMINAL_SIDE: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_CLOSE_CODES: Final = {400: CloseCode.INVALID, 409: CloseCode.TOO_MANY}
"""Close codes for agentctl's own answers; any other is *unreachable*."""


@dataclass(frozen=True, slots=True)
class _ShellRequest:
    """Which shell, and how large."""

    name: str
    columns: int
    rows: int


class ShellConsumer:
    """One WebSocket, from its handshake to its end."""

    def __init__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend):
        self._scope, self._receive, self._send = scope, receive, send
        self._sent = self._acked = 0

    async def run(self) -> None:
        """Accept first, so that a browser is told why it is refused; then serve until either end goes."""
        await self._receive()
        await self._send({"type": "websocket.accept"})
        code = await self._serve()
        if code is not None:
            await self._send_frame({"type": "websocket.close", "code": int(code)})

    async def _serve(self) -> int | None:
        """Why the socket is closed; None where the client has gone by itself."""
        principal = await authenticate(self._scope)
        if principal is None:
            return CloseCode.NOT_AUTHENTICATED
        key = parse_uuid(self._scope["url_route"]["kwargs"].get("key", ""))
        try:
            if key is None:
                raise NotFound
            subscription, client = await run_in_database(_authorize, principal, key)
            wish = _parse_shell_request(self._scope)
            async with client.shell(wish.name, wish.columns, wish.rows) as shell:
                return await self._follow(subscription, shell)
        except (SessionsError, ExecutorError) as error:
            return _close_code_of(error)

    async def _follow(self, subscription: Subscription, shell: ShellStream) -> int | None:
        """Until the first of them ends: the shell, the client, the client's right to be here."""
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("shell out", self._show(shell)),
                ("shell in", self._handle_message(shell)),
                ("shell access", _wait_for_lost_access(subscription)),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return next(iter(done)).result()

    async def _show(self, shell: ShellStream) -> int:
        async for frame in shell:
            if isinstance(frame, str):
                await self._send_frame({"type": "websocket.send", "text": frame})
                continue
            if self._sent - self._acked > FLOW_CONTROL_WINDOW:
                return CloseCode.SLOW
            self._sent += len(frame)
            await self._send_frame({"type": "websocket.send", "bytes": frame})
        return CloseCode.OVERTAKEN if shell.overtaken else CloseCode.ENDED

    async def _handle_message(self, shell: ShellStream) -> int | None:
        while (message := await self._receive())["type"] == "websocket.receive":
            if (typed := message.get("bytes")) is not None:
                await shell.type(typed)
                continue
            try:
                order = _parse_command(message.get("text") or "")
            except Invalid as error:
                await self._send_frame(
                    {"type": "websocket.send", "text": orjson.dumps({"error": error.message}).decode()}
                )
            else:
                await self._forward_command(order, shell)
        return None

    async def _forward_command(self, order: AsgiMessage, shell: ShellStream) -> None:
        if "resize" in order:
            await shell.resize(*order["resize"])
        else:
            self._acked = max(self._acked, min(order["ack"], self._sent))

    async def _send_frame(self, message: AsgiMessage) -> None:
        """Whoever has gone hears nothing; that it has gone is heard elsewhere."""
        try:
            await self._send(message)
        except Exception as error:  # noqa: BLE001 - each web server has an error of its own for this
            log.debug("a shell's output found nobody: %s", error)


def _authorize(principal: Principal, session_id: uuid.UUID) -> tuple[Subscription, AgentctlClient]:
    """The subscription and the way to agentctl; NotFound, ReadOnly, ExecutorError. Called on a database thread."""
    user = principal.user()
    session = find_session(user, session_id)
    if not may_operate(user, session):
        raise ReadOnly
    return Subscription(principal, session.task_id, session.id), agentctl_client(session)


def _close_code_of(error: Exception) -> CloseCode:
    """What a client is told that was not let in, or whose shell broke off."""
    match error:
        case NotFound():
            return CloseCode.NOT_FOUND
        case Invalid():
            return CloseCode.INVALID
        case ReadOnly():
            return CloseCode.FORBIDDEN
        case AgentctlRefused(status=status):
            return _CLOSE_CODES.get(status, CloseCode.UNREACHABLE)
    return CloseCode.UNREACHABLE


async def _wait_for_lost_access(subscription: Subscription) -> int:
    """Wait until the user may not be here any more: why."""
    while True:
        await asyncio.sleep(ACCESS_CHECK_INTERVAL)
        why = await run_in_database(_refusal, subscription)
        if why is not None:
            return why


def _refusal(subscription: Subscription) -> CloseCode | None:
    lost = revoked_subscriptions({subscription}).get(subscription)
    if lost is not None or subscription.session_id is None:
        return lost
    user = subscription.principal.user()
    return None if may_operate(user, find_session(user, subscription.session_id)) else CloseCode.FORBIDDEN


def _parse_shell_request(scope: AsgiMessage) -> _ShellRequest:
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    name = query.get("shell", "main")
    if not _NAME.fullmatch(name):
        raise Invalid("shell is a name of letters, digits, - and _.", field="shell")
    columns, rows = (_parse_side(query.get(side, default)) for side, default in (("cols", "80"), ("rows", "24")))
    return _ShellRequest(name, columns, rows)


def _parse_side(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 5):
        raise Invalid("cols and rows are whole numbers.", field="cols")
    return _check_side(int(given))


def _check_side(side: Any) -> int:
    if type(side) is not int or not 0 < side <= MAX_TERMINAL_SIDE:
        raise Invalid(f"cols and rows are between 1 and {MAX_TERMINAL_SIDE}.", field="resize")
    return side


def _parse_command(text: str) -> AsgiMessage:
    """``{"resize": [cols, rows]}`` or ``{"ack": BYTES}``; Invalid for anything else."""
    try:
        order = orjson.loads(text)
    except orjson.JSONDecodeError:
        order = None
    match order:
        case {"resize": [columns, rows]}:
            return {"resize": (_check_side(columns), _check_side(rows))}
        case {"ack": int(taken)} if taken >= 0 and taken is not True:
            return {"ack": taken}
    raise Invalid('Only {"resize": [cols, rows]} and {"ack": bytes} are taken as text.', field="text")
