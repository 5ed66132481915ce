"""The page of one session, and the actions a user takes on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.contrib import messages
from django.contrib.staticfiles.finders import find
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render, resolve_url
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from sessions_app.accounts.authorization import may_operate, may_write_session
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.agents.services import agent_login
from sessions_app.agents.services.agent_settings import request_setting
from sessions_app.agents.views.agent_settings import parse_posted_setting
from sessions_app.background.services import set_background_policy
from sessions_app.kernel.rules.states import PromptState
from sessions_app.kernel.services.errors import Invalid, PermissionPending, SessionsError
from sessions_app.models import Message, TaskSession
from sessions_app.pages.shortcuts import find_session, queried_number, redirect_back
from sessions_app.permissions.views.question_forms import WrongAnswer, answer_from_page, question_context
from sessions_app.prompts import services as prompts
from sessions_app.prompts.rules.attachments import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, taken_files_sentence
from sessions_app.prompts.services import accepted_blocks, check_files, continue_interrupted
from sessions_app.recovery.services import policies
from sessions_app.remotes.services import has_remote
from sessions_app.sessions.services import intents
from sessions_app.sessions.views.session_page import session_context
from sessions_app.stream import services as output_limits
from sessions_app.stream.views import last_messages, messages_around, most_messages, read_whole_message, render_page
from sessions_app.suspensions.services import go_on_now
from sessions_app.usage.budgets import set_session_budget
from sessions_app.usage.forms import BudgetForm
from sessions_app.waits import services as waits
from sessions_app.waits.forms import WaitCreateForm
from sessions_app.workflows.services.runs import run_of_task


@never_cache
@require_safe
def show_session(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Show the session page; ``?before=SEQ`` shows earlier messages, ``?at=SEQ`` the messages around one."""
    row = find_session(request, task_id, session_id)
    # ``last_seq`` is older than the messages below: a message that arrives in between is sent again by the live
    # updates. Read in the other order, it would be missing from the page.
    writes = may_write_session(request.user, row)
    context: dict[str, Any] = {"last_seq": row.last_seq, "now": timezone.now()}
    context |= session_context(row, writes=writes, user=request.user)
    messages, older, is_past = _page_of_messages(request, row)
    context |= {
        "messages_html": render_page(messages, request.user),
        "older_than": messages[0].seq if older else None,
        "most_messages": most_messages(),
        "may_commit": writes,
        "can_push": has_remote(row.task),
        "has_terminal": bool(find("kandev/vendor/xterm.js")),
        "has_highlight": bool(find("kandev/vendor/highlight.js")),
        "may_operate": writes and may_operate(request.user, row),
        "new_wait": WaitCreateForm(auto_id="wait-%s"),
        "is_past": is_past,
        "workflow_run": run_of_task(row.task),
        "message_id": str(uuid.uuid4()),
        "attachment_limits": {"files": MAX_FILES, "bytes": MAX_TOTAL_BYTES, "file_bytes": MAX_FILE_BYTES},
        "taken_files": taken_files_sentence(accepted_blocks(row)),
    }
    return render(request, "sessions/session.html", context)


@never_cache
@require_safe
def earlier_messages(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> JsonResponse:
    """Return the messages before ``?before=SEQ`` as ``{messages: [html], older_than}``, oldest first."""
    messages, older = last_messages(find_session(request, task_id, session_id), queried_number(request, "before"))
    page = {
        "messages": render_page(messages, request.user),
        "older_than": messages[0].seq if older else None,
    }
    return JsonResponse(page)


MAX_PART: Final = 1_000_000
"""The largest number of a part that a database can be asked for."""


@never_cache
@require_safe
def show_message(
    request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID, entry_id: uuid.UUID
) -> HttpResponse:
    """Show all of one message as plain text, in pages; ``?page=NUMBER`` counts from 0."""
    row = find_session(request, task_id, session_id)
    message = get_object_or_404(row.messages.defer("payload"), id=entry_id)
    number = queried_number(request, "page") or 0
    if number > MAX_PART:
        raise Http404(number)
    context = {
        "task": row.task,
        "session": row,
        "message": message,
        "number": number,
        "page": read_whole_message(message.id, number),
    }
    return render(request, "stream/whole_message.html", context)


def _page_of_messages(request: UserHttpRequest, row: TaskSession) -> tuple[list[Message], bool, bool]:
    """Return the messages to show, whether there are older ones, and whether there are newer ones."""
    at, before = queried_number(request, "at"), queried_number(request, "before")
    if at is not None:
        return messages_around(row, at)
    return (*last_messages(row, before), before is not None)


SessionAction = Callable[[TaskSession, UserHttpRequest], Any]


def _posted_value(request: UserHttpRequest, name: str) -> str:
    return str(request.POST.get(name, ""))


def save_session_budget(row: TaskSession, request: UserHttpRequest) -> None:
    """Save the budget that was entered on the page. Raises Invalid."""
    names = ("tokens", "cost", "currency")
    form = BudgetForm({name: _posted_value(request, f"budget_{name}") for name in names})
    if not form.is_valid():
        name, problems = next(iter(form.errors.items()))
        raise Invalid(f"{form.fields[name].label}: {problems[0]}", field=name)
    set_session_budget(row.id, form.limits(), request.user)


ACTIONS: Final[Mapping[str, SessionAction]] = {
    "resume": lambda row, request: intents.request_resume(
        row.id, request.user, _posted_value(request, "mode") or "auto"
    ),
    "cancel": lambda row, request: intents.request_cancel(row.id, request.user),
    "end-wait": lambda row, request: waits.end_wait(row.id, _posted_value(request, "wait_id")),
    "continue-wait": lambda row, request: waits.continue_without_answer(
        row.id, _posted_value(request, "wait_id"), request.user
    ),
    "stop": lambda row, request: intents.request_stop(row.id, request.user),
    "go-on": lambda row, request: go_on_now(row.id, request.user),
    "background": lambda row, request: set_background_policy(row.id, _posted_value(request, "background")),
    "more-output": lambda row, request: output_limits.allow_more_output(row.id, request.user),
    "close": lambda row, request: intents.request_close(
        row.id,
        request.user,
        _posted_value(request, "as"),
        delete_transcript=bool(_posted_value(request, "delete_transcript")),
    ),
    "answer": answer_from_page,
    "continue": lambda row, request: continue_interrupted(row.id, _posted_value(request, "message_id"), request.user),
    "setting": lambda row, request: request_setting(
        row.id,
        request.user,
        _posted_value(request, "setting"),
        parse_posted_setting(_posted_value(request, "type"), _posted_value(request, "value")),
    ),
    "login": lambda row, request: agent_login.request_login(row.id, request.user, _posted_value(request, "method")),
    "logout": lambda row, request: agent_login.request_logout(row.id, request.user),
    "policy": lambda row, request: policies.set_session_policy(row.id, {"policy": _posted_value(request, "policy")}),
    "budget": save_session_budget,
    "resend": lambda row, request: prompts.resend_prompt(row.id, _posted_value(request, "message_id"), request.user),
    "dismiss": lambda row, request: prompts.dismiss_prompt(row.id, _posted_value(request, "message_id")),
    "send-now": lambda row, request: prompts.send_now(row.id, _posted_value(request, "message_id")),
    "move-up": lambda row, request: prompts.move_by(row.id, _posted_value(request, "message_id"), -1, request.user),
    "move-down": lambda row, request: prompts.move_by(row.id, _posted_value(request, "message_id"), 1, request.user),
    "withdraw": lambda row, request: prompts.withdraw_prompt(row.id, _posted_value(request, "message_id")),
}


@require_POST
def act_on_session(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID, action: str) -> HttpResponse:
    """Carry out one of ``ACTIONS``; respond with 404 to any other."""
    row = find_session(request, task_id, session_id)
    if action not in ACTIONS:
        raise Http404(action)
    notes = []
    if action == "answer" and "next" in request.POST:  # the page that it returns to does not show the request
        notes.append("Your answer is on its way to the agent.")
    try:
        return run_and_redirect(
            request, lambda: ACTIONS[action](row, request), "session", row.task_id, row.id, notes=notes
        )
    except WrongAnswer as error:
        asked = error.permission
        context = {
            "session": row,
            "task": row.task,
            "error": error.message,
            "permission_request": asked,
            "question": question_context(asked.question, error.content, error.problems),
            "resume_token": _posted_value(request, "resume_token"),
            "back": _posted_value(request, "next"),
        }
        return render(request, "permissions/answer_question.html", context, status=400)


NOT_HANDED_OVER: Final = (
    "No running turn takes this prompt any more. It has its own turn, as soon as the agent is free."
)


@require_POST
def submit_prompt(request: UserHttpRequest, task_id: uuid.UUID, session_id: uuid.UUID) -> HttpResponse:
    """Queue a prompt, or hand it to the running turn. By its ``message_id``, a form that is sent twice is one prompt.

    If the agent waits for a permission, the prompt would end its turn, so the user is asked to confirm it first (409).
    """
    row = find_session(request, task_id, session_id)
    text, message_id = _posted_value(request, "text").replace("\r\n", "\n"), _posted_value(request, "message_id")
    confirmed, now = bool(_posted_value(request, "ends_permission")), _posted_value(request, "deliver") == "now"

    notes: list[str] = []

    def send() -> None:
        files = check_files((each.name or "", each.read(), "") for each in request.FILES.getlist("files"))
        prompt, _ = prompts.queue_prompt(
            row.id, message_id, text, request.user, ends_permission=confirmed, files=files, now=now
        )
        if now and prompt.state == PromptState.QUEUED and not prompt.steered_into:
            notes.append(NOT_HANDED_OVER)

    try:
        return run_and_redirect(request, send, "session", row.task_id, row.id, notes=notes)
    except PermissionPending as question:
        asked = {
            "session": row,
            "task": row.task,
            "question": question,
            "text": text,
            "message_id": message_id,
            "has_files": bool(request.FILES),
        }
        return render(request, "prompts/confirm_prompt.html", asked, status=409)


def run_and_redirect(
    request: UserHttpRequest, do: Callable[[], Any], *page: Any, notes: Sequence[str] = ()
) -> HttpResponse:
    """Call ``do``, then redirect to ``page`` (arguments of ``redirect``); a script gets JSON instead.

    A form that names another page of this site (``next``) leads back to that one.
    ``notes``, to which ``do`` may add, are shown on that page; they are the ``note`` of the JSON. Errors become a
    message on that page, or 409 with ``{code, message}`` for a script. Only without a script do PermissionPending and
    WrongAnswer propagate, so that the caller can ask again.
    """
    by_script = request.headers.get("Accept", "").startswith("application/json")
    try:
        do()
    except SessionsError as error:
        if by_script:
            answer: dict[str, Any] = {"code": error.code, "message": error.message}
            if isinstance(error, WrongAnswer):
                answer["fields"] = error.by_input
            return JsonResponse(answer, status=409)
        if isinstance(error, PermissionPending | WrongAnswer):
            raise
        messages.error(request, error.message)
    else:
        if by_script:
            return JsonResponse({"next_message_id": str(uuid.uuid4()), "note": " ".join(notes)})
        for note in notes:
            messages.info(request, note)
    return redirect_back(request, resolve_url(*page))
