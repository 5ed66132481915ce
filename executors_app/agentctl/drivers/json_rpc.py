"""JSON-RPC with an agent, one message per line: in order, with back-pressure, and tolerant of malformed input.

The official SDK only serves as a reference in tests: it handles notifications concurrently, which loses their order,
reads without a limit, and fails at a line whose JSON value is not an object.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson

from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.agentctl.process.async_io import LINE_LIMIT, LineSplitter, PipeStuck
from executors_app.wire.auth_methods import parse_auth_methods
from executors_app.wire.line_format import is_too_complex
from executors_app.wire.log_rate_limit import RateLimitedLog
from executors_app.wire.protocol import WITHDRAWN

PARSE_ERROR: Final = -32700
METHOD_NOT_FOUND: Final = -32601
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
_CANCEL_REQUEST: Final = "$/cancel_request"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MAX_ID_DIGITS: Final = 15
_MAX_OPEN_REQUESTS: Final = 256
"""Requests of the agent that are answered concurrently; while as many are open, nothing more is handled."""


class RpcError(Exception):
    """An error answer, of the agent or for it."""

    def __init__(self, code: int, message: str, data: Any = None):
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    @property
    def text(self) -> str:
        """The message, followed by the error's ``data``: for people and patterns.

        Agents that are not logged in repeat their ``authMethods`` there, whose names say more than their JSON.
        """
        if self.data is None:
            return self.message
        if not isinstance(self.data, dict) or "authMethods" not in self.data:
            return f"{self.message} ({encode_message(self.data).decode()})"
        rest = {name: value for name, value in self.data.items() if name != "authMethods"}
        text = self.message
        if rest:
            text = f"{self.message} ({encode_message(rest).decode()})"
        ways = "; ".join(map(_describe_login, parse_auth_methods(self.data["authMethods"])))
        if ways:
            return f"{text}. The agent offers: {ways}"
        return text


def _describe_login(method: Mapping[str, Any]) -> str:
    """Return the name of a way to log in, with its description and the variables that it needs."""
    details = []
    if method["description"]:
        details.append(method["description"])
    if method["variables"]:
        details.append(f"needs {', '.join(method['variables'])}")
    if details:
        return f"{method['name']} ({'; '.join(details)})"
    return str(method["name"])


_BEGINNING: Final = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"[^"]*"\s*,\s*)?'
_ID: Final = rb'"id"\s*:\s*(?P<id>\d{1,15}|"[^"\\]{1,200}")\s*'
_WITH_ID_FIRST: Final = re.compile(_BEGINNING + _ID + rb',\s*"(?P<next>method|result|error)"\s*:')
_WITH_METHOD_FIRST: Final = re.compile(_BEGINNING + rb'"(?P<next>method)"\s*:\s*"[^"\\]{1,200}"\s*,\s*' + _ID + rb",")
_WITH_RESULT_FIRST: Final = re.compile(_BEGINNING + rb'"(?P<next>result|error)"\s*:')
_WITH_ID_LAST: Final = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"[^"]*"\s*)?\}\s*$')
_SEARCHED_BYTES: Final = 1024
_CONTROL: Final = (
    rb"(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_=>78]|\xef\xbb\xbf|[\x00-\x20\x7f])+"
)
_LEADING_CONTROL: Final = re.compile(_CONTROL)
_TRAILING_CONTROL: Final = re.compile(_CONTROL + rb"\Z")
"""What a terminal would not show: colours, titles, a byte order mark, line ends."""
_ANSWER_START: Final = re.compile(rb'\{\s*"(?:jsonrpc|id|result)"\s*:')
_MAX_ANSWER_STARTS: Final = 5
_RESULTS_OF_AGENTS: Final = frozenset({"stopReason", "protocolVersion", "sessionId"})
"""Fields of results that only an agent sends. Our own answers, which an agent may print as a trace, have none."""
_DECODER: Final = json.JSONDecoder()
_NEXT_TEXT: Final = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class UnreadMessage:
    """What the ends of a message say about it that is too large or nested too deeply to be read."""

    id: int | str
    is_request: bool
    """A request that the agent waits for; otherwise an answer that we wait for."""


def describe_unread(line: bytes) -> UnreadMessage | None:
    """Return which request or answer a line that cannot be read is; None for a notification, and if that is unknown.

    Only names at the two ends of the line count: those in the middle may belong to an inner object.
    """
    start, end = line[:_SEARCHED_BYTES], line[-_SEARCHED_BYTES:]
    found = kind = _WITH_ID_FIRST.match(start) or _WITH_METHOD_FIRST.match(start)
    if found is None:
        kind, found = _WITH_RESULT_FIRST.match(start), _WITH_ID_LAST.search(end)
    if kind is None or found is None:
        return None
    message_id = decode_message(found["id"])
    if isinstance(message_id, int | str):
        return UnreadMessage(message_id, kind["next"] == b"method")
    return None


class AgentGone(Exception):
    """The agent's output has ended."""


@dataclass(slots=True)
class _PendingCall:
    reply: asyncio.Future[dict[str, Any] | None]
    at_reply: Callable[[], None] | None
    is_heard: bool = False
    """Whether the agent has sent anything but an answer since the call."""


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    """A request of the agent that is not answered yet."""

    id: Any
    method: str
    params: Any


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
        self._requests: dict[asyncio.Task[None], _OpenRequest | None] = {}
        """The agent's requests by task; None once they are answered or withdrawn."""
        self._given_up: deque[int] = deque(maxlen=_MAX_OPEN_REQUESTS)
        """Ids of our last requests that were abandoned before their answers."""
        self._notices: set[asyncio.Task[None]] = set()
        """Messages to the agent that nobody waits for."""
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
        if answer.get("error") not in (None, False):
            raise _parse_error(answer["error"])
        return answer.get("result")

    def _give_up(self, call_id: int) -> None:
        """Cancel our request: its answer is no longer awaited, and is dropped if it still arrives."""
        self._given_up.append(call_id)
        self._send_later({"method": _CANCEL_REQUEST, "params": {"requestId": call_id}})

    def _send_later(self, message: dict[str, Any]) -> None:
        """Send a message that nobody waits for, and drop it if the agent has ended."""
        task = asyncio.create_task(self._send_if_possible(message), name="a message to the agent")
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)

    async def _send_if_possible(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(AgentGone, PipeStuck):
            await self._send(message)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification; raises AgentGone, PipeStuck."""
        await self._send({"method": method, "params": params})

    async def close(self) -> None:
        """Stop reading and cancel the agent's open requests; our own open calls raise AgentGone."""
        tasks = [task for task in (self._reading, *self._requests, *self._notices) if task]
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
                    for message in self._messages_of(line):
                        self._handle_or_log(message, line)
                        await self._wait_for_answers()
                if splitter.skipped > skipped:
                    self._unreadable.put(b"a line was skipped: it is too long", limit=LINE_LIMIT)
                    self._answer_unread(splitter.skipped_start, "it is too long")
            if torn := splitter.torn():
                self._log_unreadable(torn, "an incomplete line")
            self._unreadable.flush()
        finally:
            self._end()

    async def _wait_for_answers(self) -> None:
        """Handle nothing more while too many requests are open: a single line may contain thousands."""
        while len(unsettled := {*self._requests, *self._notices}) >= _MAX_OPEN_REQUESTS:
            await asyncio.wait(unsettled, return_when=asyncio.FIRST_COMPLETED)

    async def _next_bytes(self) -> bytes:
        # While the journal has no room, the output stays in the pipe, which pauses the agent once it is full.
        await self._wait_for_room()
        return await self._process.stdout.read()

    def _end(self) -> None:
        self.closed.set()
        for call in self._calls.values():
            if not call.reply.done():
                call.reply.set_result(None)

    def _messages_of(self, line: bytes) -> list[Any]:
        """Return what a line contains, usually one message; None stands for what cannot be read."""
        if not line.strip():
            return []
        if is_too_complex(line):
            self._log_unreadable(line, "too many values")
            self._answer_unread(line, "it has too many values")
            return []
        value = decode_message(line.removeprefix(_BYTE_ORDER_MARK))
        if value is None:
            value = decode_joined(line)
        if value is None and (plain := strip_control(line)) != line:
            value = decode_message(plain) or decode_joined(plain)
        if value is None and (answers := find_answers(line)):
            self._log_unreadable(line, "text before an answer")
            return answers
        if value is None:
            self._answer_unread(line, "it is not valid JSON, or nested too deeply")
        # ACP has no batches, but JSON-RPC has: one that is not understood may contain the end of the turn.
        if isinstance(value, list):
            return value
        return [value]

    def _handle_or_log(self, message: Any, line: bytes) -> None:
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
            return
        for call in self._calls.values():
            call.is_heard = True
        if "id" in message:
            self._handle_request(_OpenRequest(message["id"], method, message.get("params")))
        elif method == _CANCEL_REQUEST:
            self._withdraw_request(message.get("params"))
        else:
            self._on_notification(method, message.get("params"))

    def _handle_request(self, request: _OpenRequest) -> None:
        others = [task for task, earlier in self._requests.items() if earlier and _confuses(earlier, request)]
        if others:
            # Nobody knows for which of them the agent would take an answer, so none of them gets one.
            text = f"the agent used the id of an open request for another one ({request.method}), so both were refused"
            self._unreadable.put(text.encode())
            for task in others:
                asyncio.get_running_loop().call_soon(self._withdraw, task)
            self._refuse(request.id, "The id of an open request was used for another one.")
            return
        # In a task: people may take hours to answer, and reading continues meanwhile.
        serving = asyncio.create_task(self._serve(request))
        self._requests[serving] = request
        serving.add_done_callback(self._requests.pop)

    def _withdraw_request(self, params: Any) -> None:
        """Cancel the request that the agent takes back; one that is answered already stays answered."""
        wanted = object_of(params).get("requestId")
        for task, request in self._requests.items():
            if wanted is not None and request is not None and request.id == wanted:
                # Later in the loop: a task that is cancelled before its first step would leave no answer.
                asyncio.get_running_loop().call_soon(self._withdraw, task)

    def _withdraw(self, task: asyncio.Task[None]) -> None:
        # Not while its answer is being written: the rest of a torn line would be read as part of the next one.
        if self._requests.get(task) is not None:
            self._requests[task] = None
            task.cancel(WITHDRAWN)

    def _handle_reply(self, message: dict[str, Any], line: bytes) -> None:
        call_id = message.get("id")
        if isinstance(call_id, str) and call_id.isascii() and call_id.isdigit() and len(call_id) <= _MAX_ID_DIGITS:
            call_id = int(call_id)  # our ids are numbers, which some agents repeat as text
        call = None
        if isinstance(call_id, int | float | str) and not isinstance(call_id, bool):
            call = self._calls.get(call_id)
        if call is None and call_id in self._given_up:
            return
        if call is None and call_id is None:
            call = self._call_refused_by(message)
        if call is None or call.reply.done():
            self._log_unreadable(line, "an answer without a request")
            return
        if call.at_reply:
            call.at_reply()
        call.reply.set_result(message)

    def _call_refused_by(self, message: dict[str, Any]) -> _PendingCall | None:
        """Return the call that an error without an id answers: the agent could not even read its id.

        Only the one open call, and only if the agent has sent nothing since: otherwise it has read that one.
        """
        error = message.get("error")
        code = object_of(error).get("code")
        if code not in (PARSE_ERROR, INVALID_REQUEST) or len(self._calls) != 1:
            return None
        (call,) = self._calls.values()
        if call.is_heard:
            return None
        return call

    async def _serve(self, request: _OpenRequest) -> None:
        """Answer a request of the agent; if it cannot be handled, with an error."""
        try:
            reply: dict[str, Any] = {"result": await self._on_request(request.method, request.params)}
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (WITHDRAWN,):
                raise
            reply = {"error": {"code": REQUEST_CANCELLED, "message": "Request cancelled"}}
        except RpcError as error:
            reply = {"error": {"code": error.code, "message": error.message}}
        except Exception as error:  # noqa: BLE001  (the agent waits for an answer)
            self._unreadable.put(f"{request.method} could not be answered: {error!r}".encode())
            reply = {"error": {"code": INTERNAL_ERROR, "message": "Internal error"}}
        if (task := asyncio.current_task()) in self._requests:
            self._requests[task] = None
        try:
            await self._send({"id": request.id, **reply})
        except Exception as error:  # noqa: BLE001  (only the log can still report it)
            self._unreadable.put(f"an answer to {request.method} did not reach the agent: {error!r}".encode())

    def _answer_unread(self, line: bytes, reason: str) -> None:
        """End the wait for a message that cannot be read, on whichever side it is: it never arrives otherwise."""
        unread = describe_unread(line)
        if unread is None:
            return
        if unread.is_request:
            self._refuse(unread.id, f"The request cannot be read: {reason}.")
        else:
            message = f"the agent sent an answer that cannot be read: {reason}"
            error = {"code": INTERNAL_ERROR, "message": message}
            self._handle_reply({"id": unread.id, "error": error}, line)

    def _refuse(self, request_id: Any, message: str) -> None:
        """Answer a request of the agent with an error, without handling it."""
        error = {"code": INVALID_REQUEST, "message": message}
        self._send_later({"id": request_id, "error": error})

    def _log_unreadable(self, line: bytes, reason: str) -> None:
        self._unreadable.put(line[:200], reason=reason, bytes=len(line))


def _confuses(earlier: _OpenRequest, request: _OpenRequest) -> bool:
    """Whether another request has the same id. The same one twice gets the same answer twice."""
    if type(earlier.id) is not type(request.id) or earlier.id != request.id:
        return False
    return (earlier.method, earlier.params) != (request.method, request.params)


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


def decode_joined(line: bytes) -> list[dict[str, Any]] | None:
    """Return the messages of a line in which several follow each other, as after a race of an agent's threads.

    None if the line contains anything else.
    """
    text = line.decode("utf-8", "replace").strip()
    messages: list[Any] = []
    start = 0
    try:
        while start < len(text):
            _, end = _DECODER.raw_decode(text, start)
            messages.append(decode_message(text[start:end].encode()))
            following = _NEXT_TEXT.search(text, end)
            if following is None:
                break
            start = following.start()
    except (ValueError, RecursionError):
        return None
    if all(isinstance(message, dict) for message in messages):
        return messages
    return None


def strip_control(line: bytes) -> bytes:
    """Return a line without the control sequences at its ends: progress bars and shells leave them there."""
    if leading := _LEADING_CONTROL.match(line):
        line = line[leading.end() :]
    end = line[-_SEARCHED_BYTES:]
    trailing = _TRAILING_CONTROL.search(end)
    if trailing:
        return line[: len(line) - len(end) + trailing.start()]
    return line


def find_answers(line: bytes) -> list[dict[str, Any]]:
    """Return the answers of an agent that follow other text in a line, which has no line end of its own.

    Anything else behind text may be a trace of messages that the agent also sends, and would count twice.
    """
    for start in islice(_ANSWER_START.finditer(line, 0, _SEARCHED_BYTES), _MAX_ANSWER_STARTS):
        messages = decode_joined(line[start.start() :])
        if messages is not None:
            return [message for message in messages if _is_answer_of_agent(message)]
    return []


def _is_answer_of_agent(message: Mapping[str, Any]) -> bool:
    result = message.get("result")
    return "method" not in message and isinstance(result, dict) and not _RESULTS_OF_AGENTS.isdisjoint(result)


def _parse_error(error: Any) -> RpcError:
    if not isinstance(error, dict):
        return RpcError(INTERNAL_ERROR, str(error))
    code = error.get("code")
    if not isinstance(code, int):
        code = INTERNAL_ERROR
    message = error.get("message") or "The agent answered with an error and gave no reason."
    if not isinstance(message, str):
        message = encode_message(message).decode()
    return RpcError(code, message, error.get("data"))
