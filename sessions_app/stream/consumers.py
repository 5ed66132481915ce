"""The WebSockets of a session and of a task: a greeting, the lines that the client lacks, new lines, answers.

A client that leaves 5,000 events or 8 MiB unacknowledged is sent nothing more. It is closed with 4408 unless it
acknowledges within 5 seconds, and may reconnect with ``?after=``. (daphne accepts and buffers whatever is sent, so
this window is the only back-pressure.)
"""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from sessions_app.api.errors import PayloadTooLarge
from sessions_app.board.api.serializers import TaskSerializer
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.kernel.database_threads import run_for_user
from sessions_app.kernel.services.errors import Invalid, NotFound, SessionsError
from sessions_app.models import TaskSession
from sessions_app.sessions.api.serializers import SessionSerializer
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.live import hub
from sessions_app.stream.live.authentication import CloseCode, Principal, Subscription, authenticate, remember_user
from sessions_app.stream.live.hub import LogLine, SessionLog, Subscriber, TooManySubscriptions, get_hub
from sessions_app.stream.live.stream_start import find_session, start_stream_at
from sessions_app.stream.socket_actions import failure_answer, parse_acknowledgement, read_frame, run_action

log = logging.getLogger(__name__)
MAX_SEQ: Final = 2**63 - 1
MAX_GREETED_SESSIONS: Final = 50
"""Sessions that a task's greeting describes; the status of each takes a dozen queries."""

_open_sockets: Final[Counter[tuple[str, int]]] = Counter()
"""Sockets of this process by kind and user. One that is closed counts until its client has gone: what the client has
not read is in memory until then."""

AsgiMessage = dict[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]


class AuthenticatedConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """A WebSocket for an authenticated user; subclasses implement ``open``, and ``release`` if they hold anything."""

    channel_layer_alias = "none"
    """Not a configured layer: log lines come from the hub, so no channel is opened for each socket."""
    _place: tuple[str, int] | None = None
    """The kind of socket and the user for whom it counts, until it has really ended."""

    @staticmethod
    def kind_and_limit() -> tuple[str, int]:
        """Return the kind of socket, and how many of this kind one user may have open in one process."""
        return "log", hub.MAX_SUBSCRIPTIONS

    @abstractmethod
    async def open(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> CloseCode | None:
        """Begin to serve the object with the id ``key``; return None, or the code to close the socket with."""

    async def release(self) -> None:
        """Release what the socket holds. Called at its end, whatever ended it."""

    async def __call__(self, scope: AsgiMessage, receive: AsgiReceive, send: AsgiSend) -> None:
        """Serve one connection from its handshake to its end."""
        try:
            await super().__call__(scope, receive, send)
        finally:  # also after an error or a cancellation, when Channels calls no ``disconnect``
            if self._place is not None:
                _open_sockets[self._place] -= 1
            await self.release()

    async def dispatch(self, message: AsgiMessage) -> None:
        """Handle one message of the client."""
        # Channels would first visit the thread of Django's connections. A slow query there would delay
        # acknowledgements until the socket is closed as too slow. Queries of sockets use ``run_in_database``.
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        """Accept first, because a browser gets the close code of an accepted socket only; then authenticate."""
        await self.accept()
        code = await self._authenticate_and_open()
        if code is not None:
            await self.close(int(code))

    async def _authenticate_and_open(self) -> CloseCode | None:
        principal = await authenticate(self.scope)
        if principal is None:
            return CloseCode.NOT_AUTHENTICATED
        remember_user(self.scope, principal.user_id)
        key = _parse_uuid(self.scope["url_route"]["kwargs"].get("key", ""))
        if key is None:
            return CloseCode.NOT_FOUND
        # Before anything is read for it: a greeting can cost seconds, and a user may open any number of sockets.
        if not self._take_place(principal.user_id):
            return CloseCode.TOO_MANY
        query = dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))
        return await self.open(principal, key, query)

    def _take_place(self, user_id: int) -> bool:
        """Count the socket for its user; return False if the user has too many of its kind."""
        kind, limit = self.kind_and_limit()
        if _open_sockets[kind, user_id] >= limit:
            return False
        self._place = kind, user_id
        _open_sockets[self._place] += 1
        return True

    async def send_if_connected(self, content: AsgiMessage) -> None:
        """Send JSON; ignore a client that has disconnected, because reading its next message reveals that."""
        try:
            await self.send_json(content)
        except Exception as error:  # noqa: BLE001 - each web server raises a different error for this
            log.debug("the client disconnected before its response: %s", error)

    @classmethod
    async def encode_json(cls, content: Any) -> str:
        """Encode with orjson, which supports UUIDs and times."""
        return orjson.dumps(content).decode()


class WebSocketSubscriber(Subscriber):
    """A hub subscriber that is connected by a WebSocket."""

    def __init__(
        self, subscription: Subscription, sent: Mapping[SessionLog, int], consumer: AsyncJsonWebsocketConsumer
    ):
        super().__init__(subscription, sent)
        self._consumer = consumer

    async def transmit(self, lines: Sequence[LogLine]) -> None:
        """Send a frame for each line."""
        for line in lines:
            await self._consumer.send(text_data=line.text)

    async def close(self, code: CloseCode) -> None:
        """Close the socket."""
        await self._consumer.close(int(code))


@dataclass(frozen=True, slots=True)
class ConnectionGreeting:
    """The first frames for a client, and where its subscription begins."""

    subscription: Subscription
    frames: list[AsgiMessage]
    sent: dict[SessionLog, int]
    """The last seq of each log that the client has already."""
    heads: dict[SessionLog, int]
    """The last seq of each log when the greeting was made."""


class LogConsumer(AuthenticatedConsumer):
    """A WebSocket that follows logs and answers requests (``socket_actions``)."""

    _subscriber: WebSocketSubscriber | None = None

    @abstractmethod
    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Build the greeting for the object with the id ``key``. Raises NotFound. Called on a database thread."""

    async def open(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> CloseCode | None:
        """Greet the client and begin to feed it."""
        try:
            # A parameter without a value counts as absent.
            given = {name: value for name, value in query.items() if value}
            greeting = await run_for_user(principal.user_id, self.build_greeting, principal, key, given)
            subscriber = WebSocketSubscriber(greeting.subscription, greeting.sent, self)
            # Joined before the greeting is sent, fed after it: no line is missed, and none comes before the greeting.
            get_hub().join(subscriber, greeting.heads)
        except NotFound:
            return CloseCode.NOT_FOUND
        except TooManySubscriptions:
            return CloseCode.TOO_MANY
        self._subscriber = subscriber
        for frame in greeting.frames:
            await self.send_json(frame)
        get_hub().start_feeding(subscriber)
        return None

    async def release(self) -> None:
        """Leave the hub."""
        if self._subscriber is not None:
            get_hub().leave(self._subscriber)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Handle an acknowledgement or a request of the client; errors are answered, and the socket stays open."""
        if self._subscriber is None:
            return  # refused, and about to be closed
        subscription, request_id = self._subscriber.subscription, None
        try:
            frame = read_frame(text_data)
            request_id = frame.get("id")
            if frame.get("type") == "ack":
                self._subscriber.window.ack(*parse_acknowledgement(subscription, frame))
                return
            if frame.get("type") != "request":
                raise Invalid("type must be ack or request.", field="type")
            answer: AsgiMessage = {"ok": True, "result": {}}
            if frame.get("action") != "ping":
                user_id, action = subscription.principal.user_id, frame.get("action")
                answer = await run_for_user(user_id, run_action, subscription, action, frame.get("payload"))
        except (SessionsError, PayloadTooLarge) as error:
            answer = failure_answer(error)
        # The request is carried out even if the client has gone meanwhile, and so are its later requests that have
        # arrived: a failing send must not end the consumer.
        known_id = request_id if isinstance(request_id, str | int) else None
        await self.send_if_connected({"type": "response", "id": known_id, **answer})


class SessionConsumer(LogConsumer):
    """The log of one session."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Greet; add a snapshot if the lines behind ``after`` or its ``epoch`` no longer exist."""
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


class TaskConsumer(LogConsumer):
    """The logs of a task's sessions from now on, including sessions that are created later."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Greet with the task, its newest sessions and their current statuses; follow the logs of all its sessions.

        ``session_count`` says how many there are. The API lists those that the greeting leaves out.
        """
        user = principal.user()
        task = visible_tasks(user).filter(id=key).first()
        if task is None:
            raise NotFound
        # First: an event that is written between the two reads is sent although a status shows it already. In the other
        # order, it would be in neither.
        logs = TaskSession.objects.visible_to(user).filter(task_id=task.id).values_list("id", "epoch", "last_seq")
        heads = {SessionLog(session_id, task.id, epoch): last_seq for session_id, epoch, last_seq in logs}
        sessions = visible_sessions(user).filter(task_id=task.id).order_by("-created_at", "id")
        newest = list(sessions[:MAX_GREETED_SESSIONS])
        hello: AsgiMessage = {
            "type": "hello",
            "task_id": str(task.id),
            "task": TaskSerializer(task).data,
            "session_count": len(heads),
            "sessions": SessionSerializer(newest, many=True).data,
            "statuses": {str(session.id): session_status(session) for session in newest},
        }
        return ConnectionGreeting(Subscription(principal, task.id), [hello], heads, heads)


class NotFoundConsumer(LogConsumer):
    """An address without a socket: closed with 4404."""

    def build_greeting(self, principal: Principal, key: uuid.UUID, query: Mapping[str, str]) -> ConnectionGreeting:
        """Raise NotFound for whatever the address names."""
        raise NotFound


def _parse_uuid(given: str) -> uuid.UUID | None:
    """Return the id in an address; None if it is malformed."""
    try:
        found = uuid.UUID(given)
    except ValueError:
        return None
    if str(found) == given.lower():
        return found
    return None


def _parse_seq(given: str) -> int | None:
    """Return a position in a log; None if it is malformed."""
    plain = given.isascii() and given.isdigit() and len(given) < 20
    if plain and int(given) <= MAX_SEQ:
        return int(given)
    return None
