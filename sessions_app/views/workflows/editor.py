"""The editor: the text of a workflow, with what is wrong with it and how it looks beside it.

Every button sends the whole form, so all of it works without JavaScript; with it, ``check`` answers in pieces.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from sessions_app.models import Workflow
from sessions_app.services import workflows
from sessions_app.services.errors import ChecksUnavailable, Conflict, SessionsError, Throttled
from sessions_app.services.rights import may_write, may_write_somewhere
from sessions_app.services.workflow_rows import graph_of
from sessions_app.services.workflow_schedules import triggers_document
from sessions_app.services.workflow_texts import loading_for
from sessions_app.views.workflows.checked import NOT_CHECKED, check_context, settings_context
from sessions_app.views.workflows.examples import example
from sessions_app.views.workflows.forms import RunForm, WorkflowForm, initial_of
from sessions_app.views.workflows.found import find_workflow
from sessions_app.views.workflows.listing import runs_context
from sessions_app.views.workflows.node_form import NodeForm, node_form
from sessions_app.workflows.editing import NotEditable
from sessions_app.workflows.limits import MAX_BYTES
from sessions_app.workflows.schema import Port

_STATUS: Final[Mapping[type[SessionsError], int]] = {Throttled: 429, ChecksUnavailable: 503}
"""Of requests whose text could not be loaded now."""


@dataclass
class Draft:
    """The text as it is on the page, and the settings of the node that was chosen."""

    text: str
    node: str = ""
    form: NodeForm | None = None
    said: str = ""
    """What a button came to."""
    trouble: str = ""
    errors: bool = False


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """A workflow that is not kept yet; ``?example=`` begins with one that is shipped."""
    return _limited(request, None, lambda: _new(request))


def _new(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        begun = example(request.GET.get("example", ""))
        form = WorkflowForm(request.user, None, initial={"name": begun.name, "text": begun.text})
        return _page(request, None, form, Draft(begun.text))
    if not may_write_somewhere(request.user):
        return _page(request, None, WorkflowForm(request.user, None, request.POST), Draft(_text(request)), 403)
    return _posted(request, None)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def workflow(request: HttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """The editor of a workflow, with its runs; a POST saves it, or does what its button says."""
    row = find_workflow(request, workflow_id)
    return _limited(request, row, lambda: _kept(request, row))


def _kept(request: HttpRequest, row: Workflow) -> HttpResponse:
    if request.method == "POST":
        return _posted(request, row)
    return _page(request, row, WorkflowForm(request.user, row, initial=initial_of(row)), Draft(row.text))


def _limited(request: HttpRequest, row: Workflow | None, answer: Callable[[], HttpResponse]) -> HttpResponse:
    """The answer; where its text cannot be loaded now, the same page with the text as it was sent, and why."""
    is_change = request.method == "POST"
    try:
        with loading_for(request.user, counted=is_change):
            return answer()
    except (Throttled, ChecksUnavailable) as error:
        if is_change:
            form, text = WorkflowForm(request.user, row, request.POST), _text(request)
        else:
            text = row.text if row else example(request.GET.get("example", "")).text
            form = WorkflowForm(request.user, row, initial=initial_of(row) if row else {"text": text})
        draft = Draft(text, trouble=error.message)
        return _page(request, row, form, draft, _STATUS[type(error)], is_checked=False)


def _posted(request: HttpRequest, row: Workflow | None) -> HttpResponse:
    form = WorkflowForm(request.user, row, request.POST)
    if request.POST.get("do") in ("check", "open", "apply"):
        draft = _done(request)
        return _page(request, row, form, draft, 422 if draft.errors else 200)
    draft = Draft(_text(request))
    return _saved(request, row, form, draft) if form.is_valid() else _page(request, row, form, draft, 422)


def _done(request: HttpRequest) -> Draft:
    """What a button other than the one that saves came to."""
    node, what = request.POST.get("node", ""), request.POST.get("do")
    draft = Draft(_text(request), node)
    if what == "apply":
        _apply(request, draft)
    draft.form = draft.form or node_form(draft.text, node)
    if node and draft.form is None and not draft.trouble:
        draft.trouble = f"There is no node “{node}” in this text."
    return draft


def _apply(request: HttpRequest, draft: Draft) -> None:
    draft.form = node_form(draft.text, draft.node, request.POST)
    if draft.form is None or not draft.form.is_valid():
        draft.errors = draft.form is not None
        return
    try:
        text = draft.form.applied()
    except NotEditable as error:
        draft.trouble = str(error)
        return
    draft.said = "The text has it now; save to keep it." if text != draft.text else "The text says so already."
    draft.text, draft.form = text, node_form(text, draft.node)


def _text(request: HttpRequest) -> str:
    return request.POST.get("text", "")[:MAX_BYTES].replace("\r\n", "\n")


def _saved(request: HttpRequest, row: Workflow | None, form: WorkflowForm, draft: Draft) -> HttpResponse:
    revision = form.cleaned_data.get("revision") if row else None
    try:
        made, problems = workflows.save_workflow(request.user, form.values(), workflow=row, revision=revision)
    except Conflict as error:
        if error.details.get("field"):
            form.add_error(error.details["field"], error.message)
            return _page(request, row, form, draft, 422)
        draft.trouble = error.message
        return _page(request, row, form, draft, 409)
    except ChecksUnavailable:
        raise
    except SessionsError as error:
        form.add_error(None, error.message)
        return _page(request, row, form, draft, 422)
    if made.triggers_paused:
        messages.warning(request, "It is saved. Its scheduled runs are paused until somebody confirms the change.")
    elif made.is_valid:
        messages.success(request, "It is saved.")
    else:
        count = len(problems)
        messages.warning(request, f"It is saved, and cannot be run yet: {count} problem{'s' * (count != 1)} below.")
    return redirect("workflow", made.id)


def _page(
    request: HttpRequest,
    row: Workflow | None,
    form: WorkflowForm,
    draft: Draft,
    status: int = 200,
    *,
    is_checked: bool = True,
) -> HttpResponse:
    files = row.files if row else {}
    rows = Workflow.objects.visible_to(request.user)
    newest = rows.values("revision", "text").get(id=row.id) if row and status == 409 else None
    context = {
        "workflow": row,
        "form": form,
        "draft": draft,
        "newest": newest,
        "revision": newest["revision"] if newest else form["revision"].value(),
        "reads_only": not (may_write(request.user, row.team_id) if row else may_write_somewhere(request.user)),
        "run_form": RunForm(_declared(row) if is_checked else (), auto_id="run-%s"),
        "triggers": triggers_document(request.user, row) if row and row.triggers_paused and is_checked else None,
        "run_key": str(uuid.uuid4()),
        **(check_context(draft.text, files) if is_checked else NOT_CHECKED),
        **settings_context(draft.node, draft.form),
        **(runs_context(request.user, row) if row else {}),
    }
    return render(request, "workflows/editor.html", context, status=status)


def _declared(row: Workflow | None) -> tuple[Port, ...]:
    """What a run of the saved text is started with by name."""
    graph = graph_of(row.text, row.files) if row is not None and row.is_valid else None
    return graph.inputs if graph else ()


@never_cache
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """The same in pieces, for a page that is typed in: ``{text, said, trouble, parts: {check, settings}}``."""
    row = find_workflow(request, uuid.UUID(given)) if _is_id(given := request.POST.get("workflow", "")) else None
    try:
        with loading_for(request.user):
            draft = _done(request)
            checked = check_context(draft.text, row.files if row else {})
    except (Throttled, ChecksUnavailable) as error:
        return JsonResponse({"code": error.code, "message": error.message}, status=_STATUS[type(error)])
    context = {**checked, **settings_context(draft.node, draft.form), "draft": draft}
    parts = {
        "check": render_to_string("workflows/check.html", context),
        "settings": render_to_string("workflows/node_settings.html", context),
    }
    return JsonResponse({"text": draft.text, "said": draft.said, "trouble": draft.trouble, "parts": parts})


def _is_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
