"""The WebSockets of a session and of a task (interfaces 5): hello, what is behind, events, answers.

A client that leaves 5,000 events or 8 MiB unacknowledged is sent nothing more, and closed with 4408
unless it acknowledges within 5 seconds. One that never acknowledges gets that far at a time, and comes
back with ``?after=``. (The web server itself takes whatever is sent, and buffers it.)
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

from sessions_app.api.errors import PayloadTooLarge
from sessions_app.api.serializers.sessions import SessionSerializer
from sessions_app.api.serializers.tasks import TaskSerializer
from sessions_app.live.authentication import CloseCode, Principal, Subscription, authenticate
from sessions_app.live.hub import TooManySubscriptions, get_hub
from sessions_app.live.log_reader import LogLine, SessionLog, find_session, start_stream_at
from sessions_app.live.subscriber import Subscriber
from sessions_app.services.catalogue import visible_sessions, visible_tasks
from sessions_app.services.database_threads import run_in_database
from sessions_app.services.errors import Invalid, NotFound, SessionsError
from sessions_app.services.status import session_status
from sessions_app.socket_actions import failure_answer, parse_acknowledgement, read_frame, run_action

log = logging.getLogger(__name__)
MAX_SEQ: Final = 2**63 - 1

AsgiMessage = dict[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]


class WebSocketSubscriber(Subscriber):
    """A subscriber at the other end of a WebSocket."""

    def __init__(self, subscription: Subscription, sent: Mapping[SessionLog, int], send: AsgiSend):
        super().__init__(subscription, sent)
        self._send_message = send

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """A frame for each line."""
        for line in lines:
            await self._send_message({"type": "websocket.send", "text": line.text})

    async def close(self, code: CloseCode) -> None:
        """Close the socket."""
        await self._send_message({"type": "websocket.close", "code": int(code)})


@dataclass(frozen=True, slots=True)
class ConnectionGreeting:
    """What a client is told first, and where it begins to follow."""

    subscription: Subscription
    frames: list[AsgiMessage]
    sent: dict[SessionLog, int]
    """The last seq of each log that it need not be sent."""
    heads: dict[SessionLog, int]
    """The last seq that each log had."""


class WebSocketConsumer(ABC):
    """One WebSocket, from its handshake to its end."""

    def __init__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend):
        self._scope, self._receive, self._send = scope, receive, send
        self._client: WebSocketSubscriber | None = None

    @abstractmethod
    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Find what the address names; NotFound for what is not the user's. Called on a database thread."""

    async def run(self) -> None:
        """Accept first, so that a browser is told why it is refused; then serve until the client has gone."""
        await self._receive()
        await self._send({"type": "websocket.accept"})
        try:
            refused = await self._open()
            if refused is not None:
                await self._send({"type": "websocket.close", "code": int(refused)})
            while (message := await self._receive())["type"] == "websocket.receive":
                if self._client is not None:
                    await self._handle_message(self._client, message)
        finally:
            if self._client is not None:
                get_hub().leave(self._client)

    async def _open(self) -> CloseCode | None:
        """Greet the client and begin to feed it, or say why not."""
        principal = await authenticate(self._scope)
        if principal is None:
            return CloseCode.NOT_AUTHENTICATED
        key = parse_uuid(self._scope["url_route"]["kwargs"].get("key", ""))
        if key is None:
            return CloseCode.NOT_FOUND
        query = dict(parse_qsl(self._scope["query_string"].decode("latin-1")))
        try:
            greeting = await run_in_database(self.build_greeting, principal, key, query)
            client = WebSocketSubscriber(greeting.subscription, greeting.sent, self._send)
            get_hub().join(client, greeting.heads)
        except NotFound:
            return CloseCode.NOT_FOUND
        except TooManySubscriptions:
            return CloseCode.TOO_MANY
        self._client = client
        for frame in greeting.frames:
            await self._send_frame(frame)
        get_hub().start_feeding(client)
        return None

    async def _handle_message(self, client: WebSocketSubscriber, message: AsgiMessage) -> None:
        """One frame of the client; whatever is wrong with it is said in an answer."""
        name = None
        try:
            frame = read_frame(message)
            name = frame.get("id")
            if frame.get("type") == "ack":
                client.window.ack(*parse_acknowledgement(client.subscription, frame))
                return
            if frame.get("type") != "request":
                raise Invalid("type is one of ack, request.", field="type")
            told = await self._run_request(client.subscription, frame)
        except (SessionsError, PayloadTooLarge) as error:
            told = failure_answer(error)
        await self._respond({"type": "response", "id": name if isinstance(name, str | int) else None, **told})

    async def _respond(self, frame: AsgiMessage) -> None:
        """Who has gone hears no answer; what it asked is done, and what it asked behind it is still heard."""
        try:
            await self._send_frame(frame)
        except Exception as error:  # noqa: BLE001 - each web server has an error of its own for this
            log.debug("an answer found nobody: %s", error)

    async def _run_request(self, subscription: Subscription, frame: AsgiMessage) -> AsgiMessage:
        if frame.get("action") == "ping":
            return {"ok": True, "result": {}}
        return await run_in_database(run_action, subscription, frame.get("action"), frame.get("payload"))

    async def _send_frame(self, frame: AsgiMessage) -> None:
        await self._send({"type": "websocket.send", "text": orjson.dumps(frame).decode()})


class SessionConsumer(WebSocketConsumer):
    """The log of one session."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Hello, and a snapshot where ``after`` or ``epoch`` name nothing that is still there."""
        session = find_session(principal.user(), key)
        start = start_stream_at(session, _parse_seq(query.get("after", "0")), query.get("epoch"))
        hello: AsgiMessage = {
            "type": "hello",
            "session_id": str(session.id),
            "task_id": str(session.task_id),
            "epoch": session.epoch,
            "last_seq": session.last_seq,
            "status": session_status(session),
        }
        frames = [hello]
        if start.snapshot is not None:
            frames.append({"type": "truncated", "snapshot": start.snapshot})
        subscription = Subscription(principal, session.task_id, session.id)
        return ConnectionGreeting(subscription, frames, {start.log: start.seq}, {start.log: start.head})


class TaskConsumer(WebSocketConsumer):
    """The logs of a task's sessions, from now on, those yet to be born included."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """The task, its sessions and their statuses as they are."""
        user = principal.user()
        task = visible_tasks(user).filter(id=key).first()
        if task is None:
            raise NotFound
        sessions = list(visible_sessions(user).filter(task_id=task.id))
        hello: AsgiMessage = {
            "type": "hello",
            "task_id": str(task.id),
            "task": TaskSerializer(task).data,
            "sessions": SessionSerializer(sessions, many=True).data,
            "statuses": {str(session.id): session_status(session) for session in sessions},
        }
        heads = {SessionLog.of(session): session.last_seq for session in sessions}
        return ConnectionGreeting(Subscription(principal, task.id), [hello], heads, heads)


class NotFoundConsumer(WebSocketConsumer):
    """An address that names nothing."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Nothing is there."""
        raise NotFound


def parse_uuid(given: str) -> uuid.UUID | None:
    """The id in an address; None for what cannot be one."""
    try:
        found = uuid.UUID(given)
    except ValueError:
        return None
    return found if str(found) == given.lower() else None


def _parse_seq(given: str) -> int | None:
    """A place in a log; None for what cannot be one."""
    plain = given.isascii() and given.isdigit() and len(given) < 20
    return int(given) if plain and int(given) <= MAX_SEQ else None
