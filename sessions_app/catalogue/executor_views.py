"""The settings pages of executors, for staff: list, add, change, test, disable, delete, make the default."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from executors_app.models import Executor
from executors_app.plugins import runtimes
from executors_app.wire.errors import ExecutorError
from executors_app.wire.runtime_names import runtime_name
from sessions_app.accounts.audit import recent_changes
from sessions_app.accounts.authorization import is_isolated
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.catalogue.executor_forms import RUNTIME_HELP, SETTINGS, ExecutorForm
from sessions_app.catalogue.services import executor_settings
from sessions_app.catalogue.services.executors import (
    delete_executor,
    probe_executor,
    uses_of_executor,
)
from sessions_app.catalogue.services.offers import default_executor
from sessions_app.catalogue.views import describe_probe
from sessions_app.kernel.rules.wording import describe_uses
from sessions_app.kernel.services.errors import SessionsError, SettingsChanged
from sessions_app.pages.labels import isolation_label
from sessions_app.sessions.rules.situation_facts import Label

_INVALID: Final = 422
_CONFLICT: Final = 409
SECTION: Final = "settings-executors"


def _staff_only(view: Any) -> Any:
    @wraps(view)
    def guarded(request: UserHttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.is_staff:
            raise PermissionDenied
        answer: HttpResponse = view(request, *args, **kwargs)
        return answer

    return guarded


@dataclass(frozen=True, slots=True)
class ExecutorRow:
    """An executor in the list."""

    executor: Executor
    is_default: bool

    @property
    def runtime(self) -> str:
        """Where its agents run, in words."""
        return runtime_name(self.executor.runtime)

    @property
    def isolation(self) -> Label:
        """Whether its agents are isolated from Kandev."""
        return isolation_label(self.executor.runtime, is_isolated=is_isolated(self.executor))


@never_cache
@require_safe
@_staff_only
def list_executor_settings(request: UserHttpRequest) -> HttpResponse:
    """List the executors, the default first and disabled ones last."""
    default = default_executor()
    rows = [ExecutorRow(row, row == default) for row in Executor.objects.select_related("host")]
    rows.sort(key=lambda row: (row.executor.disabled_at is not None, not row.is_default))
    return render_settings(request, "catalogue/executor_settings.html", SECTION, {"rows": rows})


@never_cache
@require_safe
@_staff_only
def choose_runtime(request: UserHttpRequest) -> HttpResponse:
    """Ask where the agents of a new executor are to run."""
    known = [*SETTINGS, *sorted(set(runtimes()) - set(SETTINGS))]
    kinds = [
        (name, runtime_name(name), isolation_label(name, is_isolated=runtimes()[name].isolated), RUNTIME_HELP.get(name))
        for name in known
        if name in runtimes()
    ]
    return render_settings(request, "catalogue/executor_new.html", SECTION, {"kinds": kinds})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@_staff_only
def add_executor(request: UserHttpRequest, runtime: str) -> HttpResponse:
    """Show the form for a new executor on a runtime. A POST adds it."""
    if runtime not in runtimes():
        raise Http404(runtime)
    form = ExecutorForm(runtime, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = executor_settings.add_executor({**form.values(), "runtime": runtime}, request.user)
        except SessionsError as error:
            _show_error(form, error)
        else:
            messages.success(request, f"{made.name} was added. Test it, then choose it when you start a session.")
            return redirect("settings-executor", made.pk)
    context = {"form": form, "executor": None, "runtime": runtime_name(runtime), "help": RUNTIME_HELP.get(runtime, "")}
    return render_settings(request, "catalogue/executor_form.html", SECTION, context, _INVALID if form.errors else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@_staff_only
def edit_executor(request: UserHttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Show the settings of an executor. A POST changes them, if nobody else has done so since they were shown."""
    executor = get_object_or_404(Executor, pk=executor_id)
    if request.method != "POST":
        return _render_form(
            request,
            executor,
            ExecutorForm(executor.runtime, initial=ExecutorForm.initial_of(executor), executor=executor),
        )
    form = ExecutorForm(executor.runtime, request.POST, executor=executor)
    if not form.is_valid():
        return _render_form(request, executor, form, _INVALID, version=request.POST.get("version", ""))
    try:
        executor_settings.change_executor(
            executor.pk, form.values(executor.config), request.POST.get("version", ""), request.user
        )
    except SettingsChanged as error:
        return _render_form(request, executor, form, _CONFLICT, conflict=error.message)
    except SessionsError as error:
        _show_error(form, error)
        return _render_form(request, executor, form, _INVALID, version=request.POST.get("version", ""))
    messages.success(request, "Saved. It applies to agents that start from now on.")
    return redirect("settings-executor", executor.pk)


def _show_error(form: ExecutorForm, error: SessionsError) -> None:
    form.add_error(form.field_of(str(error.details.get("field", ""))), error.message)


def _render_form(
    request: UserHttpRequest,
    executor: Executor,
    form: ExecutorForm,
    status: int = 200,
    *,
    version: str | None = None,
    conflict: str = "",
) -> HttpResponse:
    """Render the form; after a ``conflict`` with what is stored now beside what was entered."""
    stored: list[tuple[str, Any]] = []
    if conflict:
        now = ExecutorForm.initial_of(executor)
        stored = [(str(field.label), field.prepare_value(now.get(name))) for name, field in form.fields.items()]
    context = {
        "form": form,
        "executor": executor,
        "is_default": executor == default_executor(),
        "runtime": runtime_name(executor.runtime),
        "help": RUNTIME_HELP.get(executor.runtime, ""),
        "version": executor_settings.version_of(executor) if version is None else version,
        "conflict": conflict,
        "stored": stored,
        "changes": recent_changes(executor),
    }
    return render_settings(request, "catalogue/executor_form.html", SECTION, context, status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@_staff_only
def confirm_executor_deletion(request: UserHttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Say what depends on an executor. A POST deletes one that nothing uses."""
    executor = get_object_or_404(Executor, pk=executor_id)
    status = 200
    problem = ""
    if request.method == "POST":
        try:
            delete_executor(executor, request.user)
        except SessionsError as error:
            problem, status = error.message, _CONFLICT
        else:
            messages.success(request, f"{executor.name} was deleted.")
            return redirect(SECTION)
    context = {
        "executor": executor,
        "uses": describe_uses(uses_of_executor(executor)),
        "is_default": executor == default_executor(),
        "problem": problem,
    }
    return render_settings(request, "catalogue/executor_delete.html", SECTION, context, status)


def _make_default(executor: Executor, by: User) -> str:
    executor_settings.make_default(executor.pk, by)
    return f"{executor.name} is used from now on where nobody chooses an executor."


def _disable(executor: Executor, by: User) -> str:
    executor_settings.set_disabled(executor.pk, by, disabled=True)
    return f"{executor.name} is disabled: no new session can use it. Sessions that use it continue."


def _enable(executor: Executor, by: User) -> str:
    executor_settings.set_disabled(executor.pk, by, disabled=False)
    return f"{executor.name} is enabled."


def _test(executor: Executor, by: User) -> str:
    return describe_probe(executor, probe_executor(executor, by))


_ACTIONS: Final[Mapping[str, Callable[[Executor, User], str]]] = {
    "default": _make_default,
    "disable": _disable,
    "enable": _enable,
    "test": _test,
}


@require_POST
@_staff_only
def act_on_executor(request: UserHttpRequest, executor_id: uuid.UUID, action: str) -> HttpResponse:
    """Carry out one of ``_ACTIONS`` and report it; 404 for any other."""
    if action not in _ACTIONS:
        raise Http404(action)
    executor = get_object_or_404(Executor, pk=executor_id)
    try:
        messages.success(request, _ACTIONS[action](executor, request.user))
    except ExecutorError as error:
        messages.error(request, f"{executor.name} is not available: {error.message}")
    except SessionsError as error:
        messages.error(request, error.message)
    if request.POST.get("from") == "list":
        return redirect(SECTION)
    return redirect("settings-executor", executor.pk)
