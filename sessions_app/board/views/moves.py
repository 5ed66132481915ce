"""Moving a task to another column of the board: by a script of the page, or by a form."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.board.rules.moves import Move, moved_sentence
from sessions_app.board.services import moves
from sessions_app.finish.unfinished import UnfinishedTask, unfinished_work
from sessions_app.kernel.rules.states import TaskState
from sessions_app.kernel.services.errors import Invalid, SessionsError
from sessions_app.models import Task
from sessions_app.pages.shortcuts import find_task


@never_cache
@require_POST
def move_task(request: UserHttpRequest, task_id: uuid.UUID) -> HttpResponse:
    """Move a task from the column ``shown`` to the column ``to``; 409 with the reason for a script if that is refused.

    A task with unfinished work is only done if ``confirmed`` is the version of that work; else the answer shows it.
    """
    task = find_task(request, task_id)
    by_script = request.headers.get("Accept", "").startswith("application/json")
    try:
        shown, target = _state(request, "shown"), _state(request, "to")
        if moves.find_move(task, shown, target) is Move.DONE:
            left = unfinished_work(task)  # before any lock is taken: it asks git and agentctl
            if left.is_something and request.POST.get("confirmed") != left.version:
                return _ask(request, task, left, by_script=by_script)
        move = moves.move_task(request.user, task, shown, target)
    except SessionsError as error:
        if by_script:
            return JsonResponse({"code": error.code, "message": error.message}, status=409)
        messages.error(request, error.message)
    else:
        sentence = moved_sentence(move, task.title, target)
        if by_script:
            return JsonResponse({"message": sentence})
        messages.success(request, sentence)
    return redirect("board")


def _state(request: UserHttpRequest, name: str) -> TaskState:
    value = str(request.POST.get(name, ""))
    if value not in list(TaskState):
        raise Invalid(f"{name} must be the state of a task.", field=name)
    return TaskState(value)


def _ask(request: UserHttpRequest, task: Task, left: UnfinishedTask, *, by_script: bool) -> HttpResponse:
    context = {"task": task, "left": left}
    if not by_script:
        return render(request, "finish/confirm_done.html", context)
    answer = {
        "code": "unfinished_work",
        "message": f"“{task.title}” has work that is not merged. Nothing was changed.",
        "version": left.version,
        "html": render_to_string("finish/left_work.html", context, request),
    }
    return JsonResponse(answer, status=409)
