"""The workflow editor: check and save the text, start a run, confirm triggers, and archive the workflow."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from sessions_app.accounts.authorization import may_write, may_write_somewhere
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.rules.parsers import parse_uuid
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import ChecksUnavailable, Conflict, Invalid, SessionsError, Throttled
from sessions_app.workflows.examples import find_example
from sessions_app.workflows.forms import NodeSettingsForm, RunForm, WorkflowForm, build_node_form, initial_values
from sessions_app.workflows.language.diagnostics import Diagnostic
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.language.limits import MAX_BYTES
from sessions_app.workflows.language.schema import Port
from sessions_app.workflows.loader.editing import EditNotPossible
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services import trigger_settings, workflows
from sessions_app.workflows.services.loading import check_text, user_load_slot
from sessions_app.workflows.services.run_conditions import run_obstacle
from sessions_app.workflows.services.run_records import graph_of
from sessions_app.workflows.services.run_rights import default_executor
from sessions_app.workflows.services.runs import start_saved_run
from sessions_app.workflows.services.trigger_errors import has_active_triggers, missing_worker_error
from sessions_app.workflows.services.trigger_settings import obstacle_of, triggers_document
from sessions_app.workflows.views.lists import newest_runs
from sessions_app.workflows.views.lookups import find_workflow

MAX_PROBLEMS_SHOWN: Final = 100
"""Maximum number of problems that the page shows."""
MAX_EXCERPT_LENGTH: Final = 80
_STATUS_OF_ERROR: Final[Mapping[type[SessionsError], int]] = {Throttled: 429, ChecksUnavailable: 503}
"""Status codes of requests whose text could not be loaded now."""


def check_context(row: Workflow | None, form: WorkflowForm, text: str) -> dict[str, Any]:
    """Return the context of ``workflows/check.html`` and ``workflows/node_settings.html``. Raises ChecksUnavailable.

    ``obstacle`` is a sentence, empty if nothing keeps the text from running with the settings of the form, and None
    while that is unknown.
    """
    files = row.files if row else {}
    checked = check_text(text, files)
    lines = text.split("\n")
    return {
        "node_ids": checked.nodes,
        "valid": checked.is_valid,
        "problems": [_problem_context(problem, lines) for problem in checked.problems[:MAX_PROBLEMS_SHOWN]],
        "more_problems": max(len(checked.problems) - MAX_PROBLEMS_SHOWN, 0),
        "svg": mark_safe(checked.svg),  # noqa: S308 - our own drawing, which escapes every text of the file
        "is_empty": not text.strip(),
        "obstacle": _find_obstacle(row, form, graph_of(text, files)),
    }


def _find_obstacle(row: Workflow | None, form: WorkflowForm, graph: WorkflowGraph | None) -> str | None:
    """Return what keeps the text from running; a new workflow has no settings before they are sent."""
    if graph is None:
        return None
    if not form.is_bound:
        if row is None:
            return None
        return obstacle_of(row, graph)
    form.is_valid()
    chosen = form.cleaned_data
    team = row.team if row else chosen.get("team")
    if team is None:
        return None
    return run_obstacle(
        graph,
        team_id=team.pk,
        repository=chosen.get("repository"),
        executor=default_executor(chosen.get("executor")),
        agent_profile=chosen.get("agent_profile"),
    )


def _problem_context(problem: Diagnostic, lines: list[str]) -> dict[str, Any]:
    is_in_text = problem.file == "workflow" and 0 < problem.line <= len(lines)
    excerpt = ""
    if is_in_text:
        excerpt = lines[problem.line - 1].strip()[:MAX_EXCERPT_LENGTH]
    return {"problem": problem, "is_in_text": is_in_text, "excerpt": excerpt}


@dataclass
class EditorDraft:
    """The text on the page, which may not be saved yet, and the settings of the selected node."""

    text: str
    node: str = ""
    form: NodeSettingsForm | None = None
    notice: str = ""
    """What a button has done, for the user."""
    error: str = ""
    has_errors: bool = False
    """Whether the settings of the node are not valid."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def create_workflow(request: UserHttpRequest) -> HttpResponse:
    """Show the editor for a new workflow; ``?example=`` starts with a shipped example. A POST saves or checks it."""
    return _show_or_change(request, None)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def edit_workflow(request: UserHttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Show the editor of a workflow, with its runs. A POST saves it, or carries out another button."""
    return _show_or_change(request, find_workflow(request, workflow_id))


def _show_or_change(request: UserHttpRequest, row: Workflow | None) -> HttpResponse:
    """Show the editor or carry out a POST, while holding the user's load slot.

    If the text cannot be loaded now, return the page with the submitted text and the reason, so that nothing is lost.
    """
    is_change = request.method == "POST"
    if is_change:
        form = WorkflowForm(request.user, row, request.POST)
        text = _posted_text(request)
    elif row is not None:
        form = WorkflowForm(request.user, row, initial=initial_values(row))
        text = row.text
    else:
        example = find_example(request.GET.get("example", ""))
        form = WorkflowForm(request.user, None, initial={"name": example.name, "text": example.text})
        text = example.text
    try:
        with user_load_slot(request.user, counted=is_change):
            if not is_change:
                return _render_editor(request, row, form, EditorDraft(text))
            if row is None and not may_write_somewhere(request.user):
                return _render_editor(request, row, form, EditorDraft(text), 403)
            return _handle_post(request, row, form)
    except (Throttled, ChecksUnavailable) as error:
        draft = EditorDraft(text, error=error.message)
        return _render_editor(request, row, form, draft, _STATUS_OF_ERROR[type(error)], is_checked=False)


def _handle_post(request: UserHttpRequest, row: Workflow | None, form: WorkflowForm) -> HttpResponse:
    if request.POST.get("do") in ("check", "open", "apply"):
        draft = _handle_button(request)
        status = 422 if draft.has_errors else 200
        return _render_editor(request, row, form, draft, status)
    draft = EditorDraft(_posted_text(request))
    if form.is_valid():
        return _save(request, row, form, draft)
    return _render_editor(request, row, form, draft, 422)


def _handle_button(request: UserHttpRequest) -> EditorDraft:
    """Carry out the button *check*, *open* or *apply*."""
    node, action = request.POST.get("node", ""), request.POST.get("do")
    draft = EditorDraft(_posted_text(request), node)
    if action == "apply":
        _apply_node_settings(request, draft)
    draft.form = draft.form or build_node_form(draft.text, node)
    if node and draft.form is None and not draft.error:
        draft.error = f"The text has no step “{node}”. Choose another one."
    return draft


def _apply_node_settings(request: UserHttpRequest, draft: EditorDraft) -> None:
    draft.form = build_node_form(draft.text, draft.node, request.POST)
    if draft.form is None or not draft.form.is_valid():
        draft.has_errors = draft.form is not None
        return
    try:
        text = draft.form.apply_to_text()
    except EditNotPossible as error:
        draft.error = str(error)
        return
    if text != draft.text:
        draft.notice = "The text is changed. Save it to keep the change."
    else:
        draft.notice = "The text already has these settings."
    draft.text, draft.form = text, build_node_form(text, draft.node)


def _posted_text(request: UserHttpRequest) -> str:
    return request.POST.get("text", "")[:MAX_BYTES].replace("\r\n", "\n")


def _save(request: UserHttpRequest, row: Workflow | None, form: WorkflowForm, draft: EditorDraft) -> HttpResponse:
    revision = form.cleaned_data.get("revision") if row else None
    try:
        saved, problems = workflows.save_workflow(request.user, form.values(), workflow=row, revision=revision)
    except Conflict as error:
        if error.details.get("field"):
            form.add_error(error.details["field"], error.message)
            return _render_editor(request, row, form, draft, 422)
        draft.error = error.message
        return _render_editor(request, row, form, draft, 409)
    except ChecksUnavailable:
        raise
    except SessionsError as error:
        form.add_error(None, error.message)
        return _render_editor(request, row, form, draft, 422)
    if saved.triggers_paused:
        messages.warning(request, "Saved. Scheduled runs are paused until someone confirms the change.")
    elif saved.is_valid:
        messages.success(request, "Saved.")
    else:
        count = plural(len(problems), "1 problem", "{} problems")
        messages.warning(request, f"Saved, but it cannot be run yet: see the {count} below.")
    return redirect("workflow", saved.id)


def _render_editor(
    request: UserHttpRequest,
    row: Workflow | None,
    form: WorkflowForm,
    draft: EditorDraft,
    status: int = 200,
    *,
    is_checked: bool = True,
) -> HttpResponse:
    context: dict[str, Any] = {
        "workflow": row,
        "form": form,
        "draft": draft,
        "revision": form["revision"].value(),
        "run_key": str(uuid.uuid4()),
        "is_read_only": not _may_edit(request, row),
    }
    if is_checked:
        context |= check_context(row, form, draft.text)
        context["run_form"] = RunForm(_declared_inputs(row), auto_id="run-%s")
    else:
        context["is_unchecked"] = True
        context["run_form"] = RunForm((), auto_id="run-%s")
    if row is not None:
        context["runs"] = newest_runs(request.user, row)
        if has_active_triggers(row):
            context["missing_worker"] = missing_worker_error()
        if row.triggers_paused and is_checked:
            context["triggers"] = triggers_document(request.user, row)
        if status == 409:
            newest = Workflow.objects.visible_to(request.user).values("revision", "text").get(id=row.id)
            context["newest"] = newest
            context["revision"] = newest["revision"]
    return render(request, "workflows/editor.html", context, status=status)


def _may_edit(request: UserHttpRequest, row: Workflow | None) -> bool:
    if row is None:
        return may_write_somewhere(request.user)
    return may_write(request.user, row.team_id)


def _declared_inputs(row: Workflow | None) -> Sequence[Port]:
    """Return the inputs that the saved text declares."""
    if row is None or not row.is_valid:
        return ()
    graph = graph_of(row.text, row.files)
    if graph is None:
        return ()
    return graph.inputs


@never_cache
@require_POST
def check_workflow(request: UserHttpRequest) -> HttpResponse:
    """Check the text while the user types; return ``{text, said, trouble, parts: {check, settings}}``."""
    key = parse_uuid(request.POST.get("workflow", ""))
    row = find_workflow(request, key) if key else None
    form = WorkflowForm(request.user, row, request.POST)
    try:
        with user_load_slot(request.user):
            draft = _handle_button(request)
            context = check_context(row, form, draft.text)
    except (Throttled, ChecksUnavailable) as error:
        return JsonResponse({"code": error.code, "message": error.message}, status=_STATUS_OF_ERROR[type(error)])
    context["draft"] = draft
    parts = {
        "check": render_to_string("workflows/check.html", context),
        "settings": render_to_string("workflows/node_settings.html", context),
    }
    return JsonResponse({"text": draft.text, "said": draft.notice, "trouble": draft.error, "parts": parts})


@require_POST
def start_workflow(request: UserHttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Start a run and show it."""
    row = find_workflow(request, workflow_id)
    try:
        with user_load_slot(request.user, counted=False):
            run = _start_run(request, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("workflow", row.id)
    if run.note:
        messages.warning(request, run.note)
    return redirect("workflow-run", run.id)


def _start_run(request: UserHttpRequest, row: Workflow) -> WorkflowRun:
    """Start the run that the form asks for. Raises Invalid, and what ``start_saved_run`` raises."""
    graph = graph_of(row.text, row.files)
    form = RunForm(graph.inputs if graph else (), request.POST)
    if not form.is_valid():
        name, errors = next(iter(form.errors.items()))
        raise Invalid(f"{form[name].label}: {errors[0]}")
    run, _ = start_saved_run(
        request.user,
        row,
        form.inputs(),
        key=request.POST.get("key", ""),
        revision=form.cleaned_data["revision"],
    )
    return run


@require_POST
def change_triggers(request: UserHttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Confirm what the triggers of a workflow start, as shown, or switch them off with ``do=off``."""
    row = find_workflow(request, workflow_id)
    try:
        with user_load_slot(request.user, counted=False):
            if request.POST.get("do") == "off":
                workflows.save_workflow(request.user, {"triggers_enabled": False}, row)
                messages.success(request, "Scheduled triggers are switched off.")
            else:
                trigger_settings.confirm_triggers(request.user, row, request.POST.get("fingerprint", ""))
                messages.success(request, "Confirmed. Scheduled runs have your rights from now on.")
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect("workflow", row.id)


@require_POST
def archive_and_redirect(request: UserHttpRequest, workflow_id: uuid.UUID) -> HttpResponse:
    """Archive a workflow. Its runs stay."""
    row = find_workflow(request, workflow_id)
    try:
        workflows.archive_workflow(request.user, row)
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("workflow", row.id)
    messages.success(request, f"“{row.name}” is archived and can no longer be started. Its runs are kept.")
    return redirect("workflows")
