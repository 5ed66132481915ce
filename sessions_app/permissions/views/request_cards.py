"""The cards of an agent's requests on the session page: what is asked, its key and options, or why it is closed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import Case, Exists, OuterRef, Q, When
from django.urls import reverse
from django.utils import timezone

from sessions_app.confined.client import Failure
from sessions_app.kernel.rules.states import PermissionState, RequestKind
from sessions_app.models import PermissionRequest, TaskSession, WaitKey
from sessions_app.permissions.services import option_name, permission_keys
from sessions_app.permissions.views.question_forms import question_context
from sessions_app.rendering.services import Text, render_texts
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT, UNKNOWN_ACTION, is_rejection
from sessions_app.stream.views import review_context
from sessions_app.turns.models import newest_run
from sessions_app.waits.models import NEW_MESSAGE
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind
from sessions_app.waits.services import shown_secret

NO_ANSWER_TEXT: Final = "Nobody answered in time, so the request was cancelled."
OVERRULED_TEXT: Final = "A new prompt was sent instead of an answer, so the request was cancelled."
AGENT_ENDED_TEXT: Final = "The agent ended before it got an answer, so this request is closed."
UNANSWERABLE_TEXT: Final = "This request can no longer be answered."
WITHDRAWN_TEXT: Final = "This was closed without an answer, so there is nothing to answer any more."
MAX_CARDS: Final = 20
"""Permission requests and questions that a page shows; an agent decides how many there are."""


def request_cards(session: TaskSession) -> list[dict[str, Any]]:
    """Return the cards of the first open requests, and of those of the newest run that closed without an answer."""
    return _cards_of(session, _load_requests(session))


def request_card(session: TaskSession, request_id: str) -> dict[str, Any] | None:
    """Return the card of one request, which says how it ended unless it is open; None if the session has none."""
    request = session.permissions.filter(id=request_id).first()
    if request is None:
        return None
    (card,) = _cards_of(session, [request])
    if request.state != PermissionState.PENDING and not card["closed"]:
        card["closed"] = _end_of(request, card)
    return card


def _end_of(request: PermissionRequest, card: Mapping[str, Any]) -> str:
    """Return how a request ended that is no longer open."""
    if request.state != PermissionState.RESOLVED:
        return WITHDRAWN_TEXT
    answer = "Answered"
    if card["given"] and request.kind == RequestKind.PERMISSION:
        answer = f"Answered with “{option_name(request, card['given'])}”"
    if card["answered_by"]:
        return f"{answer} by {card['answered_by']}."
    return f"{answer}."


def for_this_time(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card without the answers that last; ``lasts`` says whether there were any."""
    options = [option for option in card["options"] if not option["effect"]]
    return {**card, "options": options, "lasts": len(options) < len(card["options"])}


def _cards_of(session: TaskSession, requests: Sequence[PermissionRequest]) -> list[dict[str, Any]]:
    keys = permission_keys(requests)
    small = {request.id for request in requests if request.size <= 2 * REVIEW_LIMIT}
    calls = _review_contexts(session, requests, small)
    return [_request_card(request, keys.get(request.id), calls[request.id]) for request in requests]


def _load_requests(session: TaskSession) -> list[PermissionRequest]:
    """Return the requests of at most ``MAX_CARDS`` cards, in their order; those that can be answered come first."""
    is_open = Q(state=PermissionState.PENDING)
    shown = is_open
    run = newest_run(session)
    if run is not None:
        # How a question ended is a message of the conversation, and so is an answer.
        of_run = Q(run=run, kind=RequestKind.PERMISSION, size__lte=2 * REVIEW_LIMIT)
        without_answer = Q(state=PermissionState.EXPIRED) | Q(state=PermissionState.CANCELLED, missed_deadline=True)
        shown |= of_run & without_answer
    keys = session.wait_keys.filter(wait_kind=WaitKind.PERMISSION, wait_id=OuterRef("id"))
    answerable_first = Case(When(is_open & Q(is_answerable=True), then=0), When(is_open, then=1), default=2)
    requests = session.permissions.annotate(
        is_answerable=Exists(keys.unsettled()),
        missed_deadline=Exists(keys.filter(expired_at__isnull=False)),
    )
    first = requests.filter(shown).order_by(answerable_first, "requested_at", "id")[:MAX_CARDS]
    return sorted(first, key=lambda request: (request.requested_at, request.id))


def count_hidden(session: TaskSession, shown: Sequence[Mapping[str, Any]]) -> int:
    """Return how many open requests have no card."""
    if len(shown) < MAX_CARDS:
        return 0
    cards = len([card for card in shown if card["request"].state == PermissionState.PENDING])
    waiting: int = session.permissions.filter(state=PermissionState.PENDING).count()
    return waiting - cards


def _review_contexts(
    session: TaskSession, requests: Sequence[PermissionRequest], small: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return what the cards show of their tool calls, by the id of the request; only ``small`` ones are rendered."""
    to_render = [request for request in requests if request.id in small]
    rendered = render_texts(session, [Text("reviewed_call", {"payload": request.tool_call}) for request in to_render])
    described = {request.id: result for request, result in zip(to_render, rendered, strict=True)}
    contexts = {}
    for request in requests:
        context = review_context(request.tool_call, described.get(request.id, Failure.TOO_EXPENSIVE))
        context["images"] = [
            reverse("request-image", args=(session.task_id, session.id, request.id, digest))
            for digest in context.get("images", [])
        ]
        contexts[request.id] = context
    return contexts


def _request_card(request: PermissionRequest, key: WaitKey | None, call: dict[str, Any]) -> dict[str, Any]:
    """Return one request: its question, key and options, the given answer, or why it is closed."""
    given, answered_by, deadline = "", "", None
    if key is not None:
        answered_by, deadline = key.consumer_name or "", key.expires_at
        if key.state(timezone.now()) is WaitKeyState.CONSUMED:
            given = str((key.first_answer or {}).get("option_id", ""))
    is_unknown = request.is_unknown_action
    options = sorted((_option_context(request, option, given) for option in request.offered_options), key=_breadth)
    if is_unknown:
        options = _options_of_unknown_action(options)
    return {
        "request": request,
        "title": _request_title(request, is_unknown=is_unknown),
        "verb": _verb(request, call),
        "shows_title": is_unknown or not call.get("command") or call["is_titled"],
        # What a command or a change tells already is folded; everything else is read before the answer.
        "opens_raw": not (call.get("command") or call.get("diffs")) or not call["tells_all"],
        "unknown_action": UNKNOWN_ACTION if is_unknown else "",
        "can_reject": any(option["rejects"] for option in options),
        "call": call,
        "question": question_context(request.question) if request.question else None,
        "prefix": f"q{request.id}-",
        # Nobody is offered to allow what the page does not show in full.
        "options": [option for option in options if call["is_whole"] or option["rejects"]],
        "given": given,
        "answered_by": answered_by,
        "deadline": deadline,
        "closed": _closed_reason(request, key),
        "resume_token": shown_secret(key) or "",
    }


def _option_context(request: PermissionRequest, option: Mapping[str, Any], given: str) -> dict[str, Any]:
    option_id = option.get("option_id", "")
    return {
        "id": option_id,
        "name": option_name(request, option_id),
        "kind": str(option.get("kind", "")),
        "effect": _EFFECTS.get(str(option.get("kind", "")), ""),
        "rejects": is_rejection(option),
        "is_main": option.get("kind") == "allow_once",
        "key_action": _KEY_ACTIONS.get(str(option.get("kind", "")), ""),
        "given": bool(given) and option_id == given,
    }


def _request_title(request: PermissionRequest, *, is_unknown: bool) -> str:
    if is_unknown:
        return "Unknown action"
    return str(request.tool_call.get("title") or "Unnamed action")[:REVIEW_LIMIT]


_VERBS: Final[Mapping[str, str]] = {
    "execute": "wants to run",
    "edit": "wants to change files",
    "delete": "wants to delete",
    "move": "wants to move",
    "read": "wants to read",
    "search": "wants to search",
    "fetch": "wants to use the network",
}
"""What an agent wants to do, by ACP's kind of the tool."""


def _verb(request: PermissionRequest, call: Mapping[str, Any]) -> str:
    """Return the words between the agent's name and what it asks for."""
    if call.get("command"):
        return _VERBS["execute"]
    return _VERBS.get(str(request.tool_call.get("tool_kind")), "asks for permission")


def _options_of_unknown_action(options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put what rejects first, with the first of it as the main button, and say of all others what they are for."""
    rejecting = [option | {"is_main": False} for option in options if option["rejects"]]
    if rejecting:
        rejecting[0]["is_main"] = True
    others = [
        option | {"is_main": False, "key_action": "", "name": f"Unknown action: {option['name']}"}
        for option in options
        if not option["rejects"]
    ]
    return [*rejecting, *others]


_OPTION_ORDER: Final = ("allow_once", "reject_once", "", "reject_always", "allow_always")
"""Order of the options by what they grant: an answer for this time first, a lasting permission last."""
_KEY_ACTIONS: Final[Mapping[str, str]] = {"allow_once": "allow", "reject_once": "reject"}
"""Actions of ``navigation.rules.shortcuts`` by the kind of the option that they press; lasting answers have no key."""
_EFFECTS: Final[Mapping[str, str]] = {
    "allow_always": "Always allow this in this session, without asking. The agent decides how far that reaches.",
    "reject_always": "Always reject this in this session, without asking. The agent decides how far that reaches.",
}
"""What a lasting answer does, in our words: the option's name is the agent's."""


def _breadth(option: Mapping[str, Any]) -> int:
    kind = option["kind"] if option["kind"] in _OPTION_ORDER else ""
    return _OPTION_ORDER.index(kind)


def _closed_reason(request: PermissionRequest, key: WaitKey | None) -> str:
    """Return why nobody can answer the request, by what closed it first; empty if it is open or has its answer."""
    state = None
    if key is not None:
        state = key.state(timezone.now())
    if state is WaitKeyState.EXPIRED:
        return NO_ANSWER_TEXT
    if key is not None and state is WaitKeyState.REVOKED and key.reason == NEW_MESSAGE:
        return OVERRULED_TEXT
    if request.state == PermissionState.EXPIRED:
        return AGENT_ENDED_TEXT
    if state is WaitKeyState.REVOKED:
        return UNANSWERABLE_TEXT
    return ""


def without_keys(permissions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the permission requests without keys and options, for a user who may not answer."""
    return [{**permission, "options": [], "resume_token": ""} for permission in permissions]
