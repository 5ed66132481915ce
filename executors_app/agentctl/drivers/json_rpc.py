"""JSON-RPC with an agent, one message per line: in order, with back-pressure, and tolerant of malformed input.

The official SDK only serves as a reference in tests: it handles notifications concurrently, which loses their order,
reads without a limit, and fails at a line whose JSON value is not an object.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from executors_app.agentctl.journal.line_format import RateLimitedLog
from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.agentctl.process.async_io import LINE_LIMIT, LineSplitter, PipeStuck
from executors_app.agentctl.protocol import WITHDRAWN

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
_CANCEL_REQUEST: Final = "$/cancel_request"
_MAX_OPEN_REQUESTS: Final = 256
"""Requests of the agent that are answered concurrently; while as many are open, nothing more is read."""


class RpcError(Exception):
    """An error answer, of the agent or for it."""

    def __init__(self, code: int, message: str, data: Any = None):
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    @property
    def text(self) -> str:
        """The message, followed by the error's ``data``: for people and patterns."""
        return self.message if self.data is None else f"{self.message} ({encode_message(self.data).decode()})"


class AgentGone(Exception):
    """The agent's output has ended."""


@dataclass(frozen=True, slots=True)
class _PendingCall:
    reply: asyncio.Future[dict[str, Any] | None]
    at_reply: Callable[[], None] | None


class JsonRpcConnection:
    """The connection to one agent: call ``start_reading`` first, then ``call`` and ``notify``."""

    def __init__(
        self,
        process: AgentProcess,
        *,
        on_notification: Callable[[str, Any], None],
        on_request: Callable[[str, Any], Awaitable[Any]],
        room: Callable[[], Awaitable[None]],
        record: Callable[..., Any],
    ):
        self.closed = asyncio.Event()
        """Set once the agent's output has ended and all of it was handled, or after ``close``."""
        self._process, self._wait_for_room = process, room
        self._on_notification, self._on_request = on_notification, on_request
        self._unreadable = RateLimitedLog(record, "stdout", level="warning")
        self._calls: dict[int | float | str, _PendingCall] = {}
        self._requests: dict[asyncio.Task[None], Any] = {}
        """The agent's open requests, each with its id until it is answered or withdrawn, then with None."""
        self._given_up: deque[int] = deque(maxlen=_MAX_OPEN_REQUESTS)
        """Ids of our last requests that were abandoned before their answers."""
        self._cancellations: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self._reading: asyncio.Task[None] | None = None

    def start_reading(self) -> None:
        """Start to read the agent's messages."""
        self._reading = asyncio.create_task(self._read(), name="agent's messages")

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        *,
        sent: Callable[[], Any] | None = None,
        at_reply: Callable[[], None] | None = None,
    ) -> Any:
        """Send a request and return its result, without a time limit; raises RpcError, AgentGone, PipeStuck.

        ``sent`` is called once the request was written, and its result awaited if it is awaitable. ``at_reply`` is
        called when the answer is read, before any later message of the agent is handled.
        """
        self._next_id += 1
        call_id, call = self._next_id, _PendingCall(asyncio.get_running_loop().create_future(), at_reply)
        self._calls[call_id] = call
        try:
            await self._send({"id": call_id, "method": method, "params": params})
            if sent is not None and inspect.isawaitable(acknowledged := sent()):
                await acknowledged
            answer = await call.reply
        except asyncio.CancelledError:
            self._give_up(call_id)
            raise
        finally:
            self._calls.pop(call_id, None)
        if answer is None:
            raise AgentGone
        if answer.get("error") is not None:
            raise _parse_error(answer["error"])
        return answer.get("result")

    def _give_up(self, call_id: int) -> None:
        """Cancel our request: its answer is no longer awaited, and is dropped if it still arrives."""
        self._given_up.append(call_id)
        task = asyncio.create_task(self._cancel_request(call_id), name=f"request {call_id} was abandoned")
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    async def _cancel_request(self, call_id: int) -> None:
        with contextlib.suppress(AgentGone, PipeStuck):
            await self.notify("$/cancel_request", {"requestId": call_id})

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; raises AgentGone, PipeStuck."""
        await self._send({"method": method, "params": params})

    async def close(self) -> None:
        """Stop reading and cancel the agent's open requests; our own open calls raise AgentGone."""
        tasks = [task for task in (self._reading, *self._requests, *self._cancellations) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end()

    async def _send(self, message: dict[str, Any]) -> None:
        if self.closed.is_set():
            raise AgentGone
        try:
            await self._process.stdin.write(encode_message({"jsonrpc": "2.0", **message}) + b"\n")
        except OSError as error:
            # The agent has closed its stdin. Its remaining output is handled before its end is reported to the caller.
            await self.closed.wait()
            raise AgentGone from error

    async def _read(self) -> None:
        splitter = LineSplitter()
        try:
            while data := await self._next_bytes():
                skipped = splitter.skipped
                for line in splitter.feed(data):
                    self._receive(line)
                if splitter.skipped > skipped:
                    self._unreadable.put(b"a line was skipped: it is too long", limit=LINE_LIMIT)
            if torn := splitter.torn():
                self._log_unreadable(torn, "an incomplete line")
            self._unreadable.flush()
        finally:
            self._end()

    async def _next_bytes(self) -> bytes:
        while len(self._requests) >= _MAX_OPEN_REQUESTS:
            await asyncio.wait(self._requests, return_when=asyncio.FIRST_COMPLETED)
        # While the journal has no room, the output stays in the pipe, which pauses the agent once it is full.
        await self._wait_for_room()
        return await self._process.stdout.read()

    def _end(self) -> None:
        self.closed.set()
        for call in self._calls.values():
            if not call.reply.done():
                call.reply.set_result(None)

    def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        message = decode_message(line)
        if not isinstance(message, dict):
            self._log_unreadable(line, "not a JSON object")
            return
        try:
            self._handle(message, line)
        except Exception as error:  # noqa: BLE001  (one odd message must not end the conversation)
            self._log_unreadable(line, f"not understood: {error!r}")

    def _handle(self, message: dict[str, Any], line: bytes) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self._handle_reply(message, line)
        elif "id" in message:
            # In a task: people may take hours to answer, and reading continues meanwhile.
            request = asyncio.create_task(self._serve(message["id"], method, message.get("params")))
            self._requests[request] = message["id"]
            request.add_done_callback(self._requests.pop)
        elif method == _CANCEL_REQUEST:
            self._withdraw_request(message.get("params"))
        else:
            self._on_notification(method, message.get("params"))

    def _withdraw_request(self, params: Any) -> None:
        """Cancel the request that the agent takes back; one that is answered already stays answered."""
        wanted = params.get("requestId") if isinstance(params, dict) else None
        for request, request_id in self._requests.items():
            if wanted is not None and request_id == wanted:
                # Later in the loop: a task that is cancelled before its first step would leave no answer.
                asyncio.get_running_loop().call_soon(self._withdraw, request)

    def _withdraw(self, request: asyncio.Task[None]) -> None:
        # Not while its answer is being written: the rest of a torn line would be read as part of the next one.
        if self._requests.get(request) is not None:
            self._requests[request] = None
            request.cancel(WITHDRAWN)

    def _handle_reply(self, message: dict[str, Any], line: bytes) -> None:
        call_id = message.get("id")
        known = isinstance(call_id, int | float | str) and not isinstance(call_id, bool)
        call = self._calls.get(call_id) if known and call_id is not None else None
        if call is None and call_id in self._given_up:
            return
        if call is None or call.reply.done():
            self._log_unreadable(line, "an answer without a request")
            return
        if call.at_reply:
            call.at_reply()
        call.reply.set_result(message)

    async def _serve(self, request_id: Any, method: str, params: Any) -> None:
        """Answer a request of the agent; if it cannot be handled, with an error."""
        try:
            reply: dict[str, Any] = {"result": await self._on_request(method, params)}
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (WITHDRAWN,):
                raise
            reply = {"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": error.message}}
        except Exception as error:  # noqa: BLE001  (the agent waits for an answer)
            self._unreadable.put(f"{method} could not be answered: {error!r}".encode())
            reply = {"error": {"code": INTERNAL_ERROR, "message": "Internal error"}}
        if (task := asyncio.current_task()) in self._requests:
            self._requests[task] = None
        try:
            await self._send({"id": request_id, **reply})
        except Exception as error:  # noqa: BLE001  (only the log can still report it)
            self._unreadable.put(f"an answer to {method} did not reach the agent: {error!r}".encode())

    def _log_unreadable(self, line: bytes, reason: str) -> None:
        self._unreadable.put(line[:200], reason=reason, bytes=len(line))


def encode_message(value: Any) -> bytes:
    """Encode a value as one line of JSON; accepts any strings and numbers."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, default=str).encode()


def decode_message(line: bytes) -> Any:
    """Return the JSON value of a line; None if it is not JSON.

    Invalid UTF-8 and lone surrogates become U+FFFD: agents cut text in the middle of a character, and the rest of the
    line is still useful.
    """
    try:
        return orjson.loads(line)
    except ValueError:
        pass
    try:
        value = json.loads(line.decode("utf-8", "replace"))
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole.decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def _parse_error(error: Any) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(INTERNAL_ERROR, str(error))
    code, message = error.get("code"), error.get("message")
    return RpcError(code if isinstance(code, int) else INTERNAL_ERROR, str(message or "no message"), error.get("data"))
