"""Forms with which comments are written, changed and sent on the page of a branch's changes, without JavaScript."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from executors_app.wire.errors import ExecutorError
from sessions_app.accounts.authorization import may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.parsers import parse_number
from sessions_app.kernel.services.errors import Invalid, SessionsError
from sessions_app.models import TaskSession
from sessions_app.pages.shortcuts import find_session
from sessions_app.review import comments
from sessions_app.review.rules.comments import MAX_PATH, Lines, Side, delivery_sentence, line_range

_OUTDATED: Final = "Outdated: these lines have changed since."
_UNKNOWN: Final = "Whether these lines have changed since is not known."
_SENTENCES: Final[Mapping[str, str]] = {Lines.OUTDATED: _OUTDATED, Lines.UNKNOWN: _UNKNOWN}


def comments_context(request: UserHttpRequest, session: TaskSession) -> dict[str, Any]:
    """Return what the page shows of comments: those that wait, those that were sent, and whether the user may write."""
    rows = comments.list_comments(session)
    compared = comments.compare_comments(session, rows)
    shown = [
        {
            "row": row,
            "range": line_range(row.first_line, row.last_line),
            "is_old": row.side == Side.OLD,
            "is_own": row.author_id == request.user.pk,
            "is_pending": row.is_pending,  # type: ignore[attr-defined]
            "lines": _SENTENCES.get(compared[row.id], ""),
            "delivery": delivery_sentence(row.prompt_state or "") if row.sent_with else "",  # type: ignore[attr-defined]
        }
        for row in rows
    ]
    return {
        "waiting": [each for each in shown if each["is_pending"]],
        "sent": [each for each in reversed(shown) if not each["is_pending"]],
        "may_write": may_write_session(request.user, session),
        "new_message_id": str(uuid.uuid4()),
    }


@never_cache
@require_POST
def change_comments(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Carry out the form's ``action``, and show the page again, with the error if it was refused."""
    session = find_session(request, task_id, session_id)
    action = _ACTIONS.get(str(request.POST.get("action", "")))
    if action is None:
        raise Http404("unknown action")
    try:
        messages.success(request, action(request, session))
    except (SessionsError, ExecutorError) as error:
        messages.error(request, error.message)
    first = parse_number(str(request.POST.get("from", ""))) or 0
    page = reverse("session-changes", args=[session.task_id, session.id])
    return redirect(f"{page}?from={first}" if first else page)


def _add(request: UserHttpRequest, session: TaskSession) -> str:
    first = _number(request, "first_line")
    last = _number(request, "last_line") if request.POST.get("last_line") else first
    path, side = str(request.POST.get("path", "")), str(request.POST.get("side", Side.NEW))
    if side not in set(Side) or not 0 < len(path) <= MAX_PATH:
        raise Invalid("This is no file to comment on.")
    key, text = _id(request.POST.get("id")), _text(request)
    comments.add_comment(
        session, request.user, path=path, side=side, first_line=first, last_line=last, text=text, id=key
    )
    return "Comment added."


def _edit(request: UserHttpRequest, session: TaskSession) -> str:
    comments.edit_comment(session, _id(request.POST.get("id")), request.user, _text(request))
    return "Comment saved."


def _delete(request: UserHttpRequest, session: TaskSession) -> str:
    comments.delete_comment(session, _id(request.POST.get("id")))
    return "Comment deleted."


def _send(request: UserHttpRequest, session: TaskSession) -> str:
    seen = [_id(value) for value in request.POST.getlist("comment")[:1000]]
    comments.send_comments(session, str(request.POST.get("message_id", "")), request.user, only=seen)
    return "The comments were sent as one prompt."


_ACTIONS: Final[Mapping[str, Callable[[UserHttpRequest, TaskSession], str]]] = {
    "add": _add,
    "edit": _edit,
    "delete": _delete,
    "send": _send,
}


def _text(request: UserHttpRequest) -> str:
    return str(request.POST.get("text", "")).replace("\r\n", "\n")


def _number(request: UserHttpRequest, name: str) -> int:
    number = parse_number(str(request.POST.get(name, "")))
    if number is None:
        raise Invalid("Enter the numbers of the first and the last line.")
    return number


def _id(value: Any) -> uuid.UUID:
    try:
        return uuid.UUID(str(value))
    except ValueError:
        raise Http404("no id") from None
