"""Mark many tasks as done, or archive them, from the board: with what they leave shown first."""

from __future__ import annotations

import uuid
from typing import Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.accounts.authorization import may_write_somewhere
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.board.services.bulk import change_tasks, preview_tasks
from sessions_app.board.views.board import filter_query, parse_filter
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.rules.wording import count_text, plural
from sessions_app.kernel.services.errors import Invalid, SessionsError

WORDS: Final = {"done": "marked as done", "archive": "archived"}
BUTTONS: Final = {"done": "Mark as done", "archive": "Archive"}


@never_cache
@require_POST
def act_on_many_tasks(request: UserHttpRequest) -> HttpResponse:
    """Carry out ``action`` (done or archive) for each ``task`` of the form.

    If one of them leaves something, nothing is changed yet: all are shown, to be confirmed or taken out.
    """
    if not may_write_somewhere(request.user):
        raise PermissionDenied
    action, query = str(request.POST.get("action", "")), filter_query(parse_filter(request.GET))
    context = {"action": action, "query": query, "board_url": f"/?{query}" if query else "/"}
    try:
        ids = _selected_ids(request)
        if "confirmed" not in request.POST:
            seen = preview_tasks(request.user, action, ids)
            if any(outcome.is_unfinished for outcome in seen):
                shown = {**context, "outcomes": seen, "button": BUTTONS[action], "words": WORDS[action]}
                return render(request, "board/confirm_tasks.html", shown)
        outcomes = change_tasks(request.user, action, ids, confirmed=True)
    except SessionsError as error:
        return render(request, "board/tasks_changed.html", {**context, "refused": error.message}, status=422)
    failures = [outcome for outcome in outcomes if not outcome.ok]
    said = _summary(len(outcomes) - len(failures), action)
    if not failures:
        messages.success(request, said)
        return redirect(context["board_url"])
    return render(request, "board/tasks_changed.html", {**context, "said": said, "failures": failures})


def _summary(count: int, action: str) -> str:
    return f"{count_text(count, 'task')} {plural(count, 'was', 'were')} {WORDS[action]}."


def _selected_ids(request: UserHttpRequest) -> list[uuid.UUID]:
    ids = []
    for text in request.POST.getlist("task"):
        task_id = parse_uuid(text)
        if task_id is None:
            raise Invalid("task must be the id of a task.", field="tasks")
        ids.append(task_id)
    return ids
