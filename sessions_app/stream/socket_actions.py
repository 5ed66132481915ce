"""Requests over a WebSocket: they use the same services as the API, with the same answers and errors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.contrib.auth.models import User
from rest_framework.serializers import BaseSerializer

from sessions_app.accounts.authorization import require_write
from sessions_app.api.errors import PayloadTooLarge, exception_handler
from sessions_app.api.serializers.common import StrictCharField
from sessions_app.attention.services import inbox
from sessions_app.kernel.services.errors import Invalid, NotFound
from sessions_app.models import TaskSession
from sessions_app.permissions.api.serializers import PermissionAnswerSerializer, PermissionSerializer
from sessions_app.permissions.services import answer_permission, permission_keys
from sessions_app.prompts import services as prompts
from sessions_app.prompts.api import PromptAnswerSerializer, TextPromptSerializer
from sessions_app.sessions.api.serializers import ResumeRequestSerializer
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.stream.live.authentication import Subscription
from sessions_app.stream.live.stream_start import find_session

MAX_FRAME: Final = 1024 * 1024
"""Bytes that one frame of a client may have."""

Payload = Mapping[str, Any]
Answer = dict[str, Any]


class PermissionChoiceSerializer(PermissionAnswerSerializer):
    """The option that was chosen, and of which permission."""

    permission_id = StrictCharField(max_length=128)


@dataclass(frozen=True, slots=True)
class SocketAction:
    """An action that a client can request for a session."""

    run: Callable[[TaskSession, Any, Payload], Any]
    writes: bool = True
    """Whether it needs the right to write in the session's team."""


def read_frame(text: str | None) -> dict[str, Any]:
    """Return the JSON object of a text frame. Raises Invalid, and PayloadTooLarge above ``MAX_FRAME``."""
    if text is None:
        raise Invalid("Frames must be text.")
    if len(text) > MAX_FRAME or len(text.encode()) > MAX_FRAME:
        raise PayloadTooLarge(f"A frame can have at most {MAX_FRAME} bytes.")
    try:
        frame = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"The request body is not valid JSON: {error}.") from error
    if not isinstance(frame, dict):
        raise Invalid("The request body must be a JSON object.")
    return frame


def parse_acknowledgement(subscription: Subscription, frame: Payload) -> tuple[uuid.UUID, int]:
    """Return the session and the seq that an ``ack`` frame names. Raises Invalid, NotFound."""
    seq = frame.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise Invalid("seq must be a number.", field="seq")
    return _target_session_id(subscription, frame), seq


def run_action(subscription: Subscription, action: Any, payload: Any) -> Answer:
    """Carry out a request of a subscriber; return ``{ok, result}`` or ``{ok, error}``. Raises nothing."""
    try:
        return {"ok": True, "result": _execute(subscription, action, payload)}
    except Exception as error:  # noqa: BLE001 - the API has an answer for every error, and the socket stays open
        return failure_answer(error)


def failure_answer(error: Exception) -> Answer:
    """Return the answer for an error, with the same body as in the API."""
    return {"ok": False, "error": exception_handler(error, {}).data}


def _execute(subscription: Subscription, action: Any, payload: Any) -> Any:
    payload = {} if payload is None else payload
    if not isinstance(payload, dict):
        raise Invalid("payload must be an object.", field="payload")
    if not isinstance(action, str) or action not in ACTIONS:
        raise Invalid(f"action must be one of {', '.join(ACTIONS)}.", field="action")
    # Loaded for each request: rights may have changed since the socket was opened.
    user = subscription.principal.user()
    session = find_session(user, _target_session_id(subscription, payload))
    if session.task_id != subscription.task_id:
        raise NotFound
    if ACTIONS[action].writes:
        require_write(user, session.task.team_id)
    return ACTIONS[action].run(session, user, payload)


def _target_session_id(subscription: Subscription, payload: Payload) -> uuid.UUID:
    """Return the id of the session concerned: the socket's own, or on a task's socket the one in the payload.

    Raises Invalid, and NotFound for a session that is not the socket's.
    """
    named = payload.get("session_id")
    if named is None and subscription.session_id is not None:
        return subscription.session_id
    try:
        found = uuid.UUID(named)
    except (AttributeError, TypeError, ValueError):
        raise Invalid("session_id must be the id of a session.", field="session_id") from None
    if subscription.session_id not in (None, found):
        raise NotFound("This socket belongs to another session.")
    return found


def _status(session: TaskSession, user: User, payload: Payload) -> Answer:
    return session_status(session, user)


def _resume(session: TaskSession, user: User, payload: Payload) -> Answer:
    intents.request_resume(session.id, user, _validated(ResumeRequestSerializer, payload)["mode"])
    return {"status": session_status(find_session(user, session.id), user)}


def _prompt(session: TaskSession, user: User, payload: Payload) -> Any:
    prompt = _validated(TextPromptSerializer, {name: value for name, value in payload.items() if name != "session_id"})
    row, _ = prompts.queue_prompt(session.id, prompt["message_id"], prompt["text"], user)
    return PromptAnswerSerializer(row).data


def _cancel(session: TaskSession, user: User, payload: Payload) -> Answer:
    cancelling = intents.request_cancel(session.id, user)
    return {"status": session_status(find_session(user, session.id), user), "cancelling": cancelling}


def _respond(session: TaskSession, user: User, payload: Payload) -> Any:
    chosen = _validated(PermissionChoiceSerializer, payload)
    permission = answer_permission(
        session.id,
        chosen["permission_id"],
        chosen["option_id"],
        chosen["resume_token"],
        user,
        content=chosen["content"],
    )
    context = {"keys": permission_keys([permission]), "may_answer": True}
    return PermissionSerializer(permission, context=context).data


def _presence(session: TaskSession, user: User, payload: Payload) -> Answer:
    """Record whether the user is looking at the session's page."""
    here = payload.get("here")
    if not isinstance(here, bool):
        raise Invalid("here must be true or false.", field="here")
    (inbox.mark_present if here else inbox.mark_absent)(session, user)
    return {"here": here}


def _validated(kind: type[BaseSerializer[Any]], payload: Payload) -> dict[str, Any]:
    serializer = kind(data=payload)
    serializer.is_valid(raise_exception=True)
    checked: dict[str, Any] = serializer.validated_data
    return checked


ACTIONS: Final[Mapping[str, SocketAction]] = {
    "task.session.status": SocketAction(_status, writes=False),
    "task.session.resume": SocketAction(_resume),
    "task.session.prompt": SocketAction(_prompt),
    "task.session.cancel": SocketAction(_cancel),
    "task.session.permission.respond": SocketAction(_respond),
    "task.session.presence": SocketAction(_presence, writes=False),
}
"""All actions except ``ping``, which the consumer answers without the database."""
