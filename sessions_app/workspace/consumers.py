"""A shell of a session's workspace for a browser: ``/ws/sessions/{id}/shell/?cols=&rows=``.

Bytes pass unchanged in both directions. Texts are JSON: from agentctl first ``{"shell", "offset", "running", "new",
"replay"}`` and last ``{"exit"}``; from the client ``{"resize": [cols, rows]}``, and ``{"ack": BYTES}`` with the
number of bytes that it has processed. When the shell named ``login`` ends, the sessions that wait for that login are
tried again, once. A client that leaves ``window`` bytes unacknowledged (16 MiB, unless it asks for less) is sent
nothing more, and its shell soon waits. It is closed with 4408 unless it acknowledges within 5 seconds, and finds the
shell's scrollback when it reconnects. (daphne accepts and buffers whatever is sent, so this is the only
back-pressure.)
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import orjson

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.agentctl_client.streams import ShellStream
from executors_app.wire.errors import AgentctlRefused, ExecutorError
from sessions_app.accounts.authorization import may_operate
from sessions_app.agents.services.agent_setup import retry_after_login
from sessions_app.kernel.database_errors import classify_error
from sessions_app.kernel.database_threads import run_for_user, run_in_database
from sessions_app.kernel.services.errors import Invalid, NotFound, ReadOnly, SessionsError
from sessions_app.stream.consumers import AsgiMessage, AuthenticatedConsumer
from sessions_app.stream.live.authentication import CloseCode, Principal, Subscription, revoked_subscriptions
from sessions_app.stream.live.stream_start import find_session
from sessions_app.workspace.services.workspace import agentctl_client

log = logging.getLogger(__name__)

ACCESS_CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks of the user's access."""
LOGIN_SHELL: Final = "login"
"""Name of the shell in which the page runs an agent's login command; when it ends, waiting sessions are tried again."""
FLOW_CONTROL_WINDOW: Final = 16 << 20
"""Maximum number of bytes that a client may leave unacknowledged."""
MAX_SHELL_SOCKETS: Final = 16
"""Shells that one user may have open in one process; each may have a full window in memory."""
ACK_TIMEOUT: Final = 5.0
"""Seconds within which a client with a full window has to acknowledge something."""
MAX_TERMINAL_SIDE: Final = 1000
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_CLOSE_CODES: Final = {400: CloseCode.INVALID, 409: CloseCode.TOO_MANY}
"""Close codes by HTTP status of agentctl's refusals; any other status is UNREACHABLE."""


class ShellConsumer(AuthenticatedConsumer):
    """Connects a WebSocket to a shell of agentctl until the shell ends, the client leaves or the user loses access."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shell: ShellStream | None = None
        self._connection = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._sent = self._acked = self._window = 0
        self._has_acked = asyncio.Event()
        self._login_of: uuid.UUID | None = None
        """The session whose agent logs in in this shell; None for any other shell."""

    @staticmethod
    def kind_and_limit() -> tuple[str, int]:
        """Return the kind of socket, and how many of this kind one user may have open in one process."""
        return "shell", MAX_SHELL_SOCKETS

    async def open(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> CloseCode | None:
        """Open the shell. From then on its output and the user's access are watched in the background."""
        try:
            subscription, client = await run_for_user(principal.user_id, _authorize, principal, key)
            name, columns, rows, self._window = _parse_shell_request(query)
            self._login_of = key if name == LOGIN_SHELL else None
            opening = client.shell(name, columns, rows)
            self._shell = await self._connection.enter_async_context(opening)
        except (SessionsError, ExecutorError) as error:
            return _close_code_of(error)
        self._tasks = [
            asyncio.create_task(self._close_after(self._send_output(self._shell)), name="shell output"),
            asyncio.create_task(self._close_after(_wait_for_lost_access(subscription)), name="shell access"),
        ]
        return None

    async def release(self) -> None:
        """Leave the shell. It keeps running; whoever opens it again gets its scrollback. May be called twice."""
        self._shell = None
        # ``_end`` calls this from one of these tasks, which must not cancel and wait for itself.
        others = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._connection.aclose()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Type the bytes of a frame into the shell, or carry out the command of a text frame."""
        shell = self._shell
        if shell is None:
            return  # refused or ended, and about to be closed
        try:
            if bytes_data is not None:
                await shell.type(bytes_data)
            else:
                await self._run_command(_parse_command(text_data or ""), shell)
        except Invalid as error:
            await self.send_if_connected({"error": error.message})
        except ExecutorError as error:
            await self._end(_close_code_of(error))

    async def _run_command(self, command: AsgiMessage, shell: ShellStream) -> None:
        if "resize" in command:
            await shell.resize(*command["resize"])
        else:
            self._acked = max(self._acked, min(command["ack"], self._sent))
            self._has_acked.set()

    async def _send_output(self, shell: ShellStream) -> CloseCode:
        async for frame in shell:
            if isinstance(frame, str):
                if self._login_of is not None and "exit" in orjson.loads(frame):
                    await _retry_after_login(self._login_of)
                await self._send_frame(text_data=frame)
                continue
            if not await self._wait_for_room():
                return CloseCode.SLOW
            self._sent += len(frame)
            await self._send_frame(bytes_data=frame)
        if shell.overtaken:
            return CloseCode.OVERTAKEN
        return CloseCode.ENDED

    async def _wait_for_room(self) -> bool:
        """Wait while the window is full; return False if it still is after ``ACK_TIMEOUT`` seconds.

        Nothing is read from agentctl meanwhile, so that its shell waits, too.
        """
        try:
            async with asyncio.timeout(ACK_TIMEOUT):
                while self._sent - self._acked >= self._window:
                    self._has_acked.clear()
                    await self._has_acked.wait()
        except TimeoutError:
            return False
        return True

    async def _send_frame(self, **frame: str | bytes) -> None:
        """Send a frame; ignore a client that has disconnected, because that ends the socket anyway."""
        try:
            await self.send(**frame)
        except Exception as error:  # noqa: BLE001 - each web server raises a different error for this
            log.debug("the client of a shell disconnected before it got the output: %s", error)

    async def _close_after(self, work: Awaitable[CloseCode]) -> None:
        """Close the socket with what ``work`` returns, or with the code of its error."""
        try:
            code = await work
        except (SessionsError, ExecutorError) as error:
            code = _close_code_of(error)
        except Exception as error:
            if classify_error(error) is None:
                code = CloseCode.FAILED
            else:
                code = CloseCode.UNREACHABLE
            if code is CloseCode.FAILED:
                log.exception("a shell's socket failed")
        await self._end(code)

    async def _end(self, code: CloseCode) -> None:
        """Close the socket, once: the first of output, access check and input to end gives the code."""
        if self._shell is None:
            return
        self._shell = None  # before the first await, so that a concurrent call returns above
        try:
            await self.close(int(code))
        except Exception as error:  # noqa: BLE001 - each web server raises a different error for this
            log.debug("the client disconnected before its shell ended: %s", error)
        await self.release()


async def _retry_after_login(session_id: uuid.UUID) -> None:
    """Try the sessions again that wait for this login; a failure must not keep the end from the client."""
    try:
        await run_in_database(retry_after_login, session_id)
    except Exception:
        log.exception("session %s: what waits for its login could not be tried again", session_id)


def _authorize(principal: Principal, session_id: uuid.UUID) -> tuple[Subscription, AgentctlClient]:
    """Return the subscription and the agentctl client of a session. Raises NotFound, ReadOnly, ExecutorError."""
    user = principal.user()
    session = find_session(user, session_id)
    if not may_operate(user, session):
        raise ReadOnly
    return Subscription(principal, session.task_id, session.id), agentctl_client(session)


def _close_code_of(error: Exception) -> CloseCode:
    """Return the close code for a client that was refused, or whose shell broke off."""
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


async def _wait_for_lost_access(subscription: Subscription) -> CloseCode:
    """Wait until the user loses the right to this shell; return why."""
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
    if may_operate(user, find_session(user, subscription.session_id)):
        return None
    return CloseCode.FORBIDDEN


def _parse_shell_request(query: Mapping[str, str]) -> tuple[str, int, int, int]:
    """Return name, columns and rows of the shell, and how many bytes the client may leave unacknowledged."""
    name = query.get("shell", "main")
    if not _NAME.fullmatch(name):
        raise Invalid("shell must consist of letters, digits, - and _.", field="shell")
    columns, rows = (
        _check_side(_parse_number(query.get(side, default), side)) for side, default in (("cols", "80"), ("rows", "24"))
    )
    window = _parse_number(query.get("window", str(FLOW_CONTROL_WINDOW)), "window")
    if not 0 < window <= FLOW_CONTROL_WINDOW:
        raise Invalid(f"window must be between 1 and {FLOW_CONTROL_WINDOW} bytes.", field="window")
    return name, columns, rows, window


def _parse_number(given: str, field: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise Invalid(f"{field} must be a whole number.", field=field)
    return int(given)


def _check_side(side: Any) -> int:
    if type(side) is not int or not 0 < side <= MAX_TERMINAL_SIDE:
        raise Invalid(f"cols and rows must be between 1 and {MAX_TERMINAL_SIDE}.", field="resize")
    return side


def _parse_command(text: str) -> AsgiMessage:
    """Parse ``{"resize": [cols, rows]}`` or ``{"ack": BYTES}``. Raises Invalid for anything else."""
    try:
        order = orjson.loads(text)
    except orjson.JSONDecodeError:
        order = None
    match order:
        case {"resize": [columns, rows]}:
            return {"resize": (_check_side(columns), _check_side(rows))}
        case {"ack": int(taken)} if taken >= 0 and taken is not True:
            return {"ack": taken}
    raise Invalid('A text frame must be {"resize": [cols, rows]} or {"ack": bytes}.', field="text")
