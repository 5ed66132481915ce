"""What can be asked over a socket (interfaces 5): the same services, the same answers, the same errors as the API."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from rest_framework.serializers import BaseSerializer

from sessions_app.api.errors import TooLarge, exception_handler
from sessions_app.api.fields import Text
from sessions_app.api.serializers.conversation import (
    PermissionAnswer,
    PermissionSerializer,
    PromptAnswer,
    PromptRequest,
)
from sessions_app.api.serializers.sessions import ResumeRequest
from sessions_app.live.access import Seat
from sessions_app.live.opening import find
from sessions_app.models import TaskSession
from sessions_app.services import intents, permissions, presence, tokens
from sessions_app.services.errors import Invalid, NotFound
from sessions_app.services.rights import require_write
from sessions_app.services.status import session_status

MAX_FRAME: Final = 1024 * 1024
"""Bytes of one frame from a client."""

Payload = Mapping[str, Any]
Answer = dict[str, Any]


class PermissionChoice(PermissionAnswer):
    """The option that was chosen, and of which permission."""

    permission_id = Text(max_length=128)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be asked of a session."""

    run: Callable[[TaskSession, Any, Payload], Any]
    writes: bool = True


def read_frame(message: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object that a client sent; Invalid for anything else, TooLarge for too much of it."""
    text = message.get("text")
    if text is None:
        raise Invalid("Frames are text.")
    if len(text) > MAX_FRAME or len(text.encode()) > MAX_FRAME:
        raise TooLarge(f"A frame of more than {MAX_FRAME} bytes is not read.")
    try:
        frame = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"This is not JSON: {error}.") from error
    if not isinstance(frame, dict):
        raise Invalid("A JSON object is wanted.")
    return frame


def acknowledged(seat: Seat, frame: Payload) -> tuple[uuid.UUID, int]:
    """The session and the seq that an ``ack`` names; Invalid where it names none."""
    seq = frame.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise Invalid("seq is a number.", field="seq")
    return _session_id(seat, frame), seq


def answer(seat: Seat, action: Any, payload: Any) -> Answer:
    """Carry a request out for whoever sits there: ``{ok, result}`` or ``{ok, error}``; never raises."""
    try:
        return {"ok": True, "result": _carry_out(seat, action, payload)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the API has words for it and the socket stays open
        return refusal(error)


def refusal(error: Exception) -> Answer:
    """An error as the API tells it."""
    return {"ok": False, "error": exception_handler(error, {}).data}


def _carry_out(seat: Seat, action: Any, payload: Any) -> Any:
    payload = {} if payload is None else payload
    if not isinstance(payload, dict):
        raise Invalid("The payload is an object.", field="payload")
    if not isinstance(action, str) or action not in ACTIONS:
        raise Invalid(f"action is one of {', '.join(ACTIONS)}.", field="action")
    user = seat.badge.user()
    session = find(user, _session_id(seat, payload))
    if session.task_id != seat.task_id:
        raise NotFound
    if ACTIONS[action].writes:
        require_write(user, session.task.team_id)
    return ACTIONS[action].run(session, user, payload)


def _session_id(seat: Seat, payload: Payload) -> uuid.UUID:
    """The session that is meant: the socket's own, or of a task's socket the one that the payload names."""
    named = payload.get("session_id")
    if named is None and seat.session_id is not None:
        return seat.session_id
    try:
        found = uuid.UUID(named)
    except (AttributeError, TypeError, ValueError):
        raise Invalid("session_id is the id of a session.", field="session_id") from None
    if seat.session_id not in (None, found):
        raise NotFound("This socket belongs to another session.")
    return found


def _status(session: TaskSession, user: Any, payload: Payload) -> Answer:
    return session_status(session, user)


def _resume(session: TaskSession, user: Any, payload: Payload) -> Answer:
    intents.resume(session.id, user, _checked(ResumeRequest, payload)["mode"])
    return {"status": session_status(find(user, session.id), user)}


def _prompt(session: TaskSession, user: Any, payload: Payload) -> Any:
    asked = _checked(PromptRequest, {name: value for name, value in payload.items() if name != "session_id"})
    row, _ = intents.prompt(session.id, asked["message_id"], asked["text"], user)
    return PromptAnswer(row).data


def _cancel(session: TaskSession, user: Any, payload: Payload) -> Answer:
    cancelling = intents.cancel(session.id, user)
    return {"status": session_status(find(user, session.id), user), "cancelling": cancelling}


def _respond(session: TaskSession, user: Any, payload: Payload) -> Any:
    chosen = _checked(PermissionChoice, payload)
    asked = permissions.answer(session.id, chosen["permission_id"], chosen["option_id"], chosen["resume_token"], user)
    context = {"tokens": tokens.of_permissions([asked]), "may_answer": True}
    return PermissionSerializer(asked, context=context).data


def _presence(session: TaskSession, user: Any, payload: Payload) -> Answer:
    """The page says whether somebody looks at it."""
    here = payload.get("here")
    if not isinstance(here, bool):
        raise Invalid("here is true or false.", field="here")
    (presence.arrive if here else presence.leave)(session, user)
    return {"here": here}


def _checked(kind: type[BaseSerializer[Any]], payload: Payload) -> dict[str, Any]:
    serializer = kind(data=payload)
    serializer.is_valid(raise_exception=True)
    checked: dict[str, Any] = serializer.validated_data
    return checked


ACTIONS: Final[Mapping[str, Action]] = {
    "task.session.status": Action(_status, writes=False),
    "task.session.resume": Action(_resume),
    "task.session.prompt": Action(_prompt),
    "task.session.cancel": Action(_cancel),
    "task.session.permission.respond": Action(_respond),
    "task.session.presence": Action(_presence, writes=False),
}
"""``ping`` is answered without a look at the database."""
