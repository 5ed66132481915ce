"""The settings pages of repositories: which there are, what is wrong with them, and what may be changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache

from sessions_app.accounts.audit import recent_changes
from sessions_app.accounts.authorization import may_manage
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.catalogue.repository_forms import RepositoryAddForm, RepositorySettingsForm
from sessions_app.catalogue.services.repositories import add_repository
from sessions_app.catalogue.services.repository_checks import MAX_CHECKED, check_repository, recent_check
from sessions_app.catalogue.services.repository_settings import (
    change_repository,
    find_uses,
    remove_repository,
    repository_version,
    settings_repositories,
)
from sessions_app.kernel.services.errors import Invalid, RepositoryChanged, SessionsError
from sessions_app.models import Repository
from sessions_app.pages.shortcuts import READ_METHODS

MAX_SHOWN: Final = 200
MAX_STAFF_NAMED: Final = 5
_SECTION: Final = "settings-repositories"
_INVALID: Final = 422


@never_cache
def list_repositories(request: UserHttpRequest) -> HttpResponse:
    """List the repositories that the user may see. A POST by staff opens one of the server's disk to a team."""
    if request.method in READ_METHODS:
        return _render_list(request, RepositoryAddForm())
    if not request.user.is_staff:
        raise PermissionDenied
    form = RepositoryAddForm(request.POST)
    if form.is_valid():
        try:
            row = add_repository(form.cleaned_data, request.user)
        except Invalid as error:
            form.add_error("path", error.message)
        else:
            messages.success(request, f"{row.name} is open to {row.team.name}.")
            return redirect("settings-repository", row.pk)
    return _render_list(request, form, _INVALID)


def _render_list(request: UserHttpRequest, form: RepositoryAddForm, status: int = 200) -> HttpResponse:
    rows = list(settings_repositories(request.user)[: MAX_SHOWN + 1])
    shown = [(row, recent_check(row) if place < MAX_CHECKED else None) for place, row in enumerate(rows[:MAX_SHOWN])]
    staff = get_user_model().objects.filter(is_staff=True, is_active=True).order_by("username")
    names = [str(user.get_full_name() or user.get_username()) for user in staff[: MAX_STAFF_NAMED + 1]]
    context = {
        "repositories": shown,
        "has_more": len(rows) > MAX_SHOWN,
        "form": form,
        "several_teams": len({row.team_id for row in rows}) > 1,
        "staff_names": names[:MAX_STAFF_NAMED],
        "has_more_staff": len(names) > MAX_STAFF_NAMED,
    }
    return render_settings(request, "catalogue/repositories.html", _SECTION, context, status)


@never_cache
def edit_repository(request: UserHttpRequest, repository_id: uuid.UUID) -> HttpResponse:
    """Show one repository. A POST by a user who manages its team does what its ``action`` says."""
    row: Repository = get_object_or_404(settings_repositories(request.user), id=repository_id)
    if request.method in READ_METHODS:
        return _render_one(request, row, RepositorySettingsForm.showing(row, repository_version(row)))
    if not may_manage(request.user, row.team):
        raise PermissionDenied
    action = request.POST.get("action", "")
    if action == "save":
        return _save(request, row)
    if action not in _ACTIONS:
        return HttpResponseBadRequest("This page has no such action.")
    try:
        return _ACTIONS[action](request, row)
    except SessionsError as error:
        messages.error(request, error.message)
    return redirect(request.path)


def _save(request: UserHttpRequest, row: Repository) -> HttpResponse:
    form = RepositorySettingsForm(request.POST)
    if form.is_valid():
        values = {name: value for name, value in form.cleaned_data.items() if name != "version"}
        try:
            change_repository(row, values, request.user, form.cleaned_data["version"])
        except RepositoryChanged as error:
            form.add_error(None, f"{error.message} The fields show what you entered; reload the page to see theirs.")
        except Invalid as error:
            form.add_error(error.details.get("field"), error.message)
        except SessionsError as error:  # it was removed, or the user's role changed, while branches were looked up
            messages.error(request, error.message)
            return redirect(_SECTION)
        else:
            messages.success(request, "Saved.")
            return redirect(request.path)
    return _render_one(request, row, form, _INVALID)


def _make_default(request: UserHttpRequest, row: Repository) -> HttpResponse:
    change_repository(row, {"is_default": True}, request.user)
    messages.success(request, f"{row.name} is now the default of {row.team.name}.")
    return redirect(request.path)


def _drop_default(request: UserHttpRequest, row: Repository) -> HttpResponse:
    change_repository(row, {"is_default": False}, request.user)
    messages.success(request, f"{row.team.name} has no default repository now.")
    return redirect(request.path)


def _remove(request: UserHttpRequest, row: Repository) -> HttpResponse:
    remove_repository(row, request.user, request.POST.get("version", ""))
    messages.success(request, f"{row.name} was removed from {row.team.name}. Its tasks stay.")
    return redirect("settings-repositories")


_ACTIONS: Final[Mapping[str, Callable[[UserHttpRequest, Repository], HttpResponse]]] = {
    "default": _make_default,
    "no-default": _drop_default,
    "remove": _remove,
}


def _render_one(
    request: UserHttpRequest, row: Repository, form: RepositorySettingsForm, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {
        "repository": row,
        "team": row.team,
        "check": check_repository(row),
        "uses": find_uses(row),
        "form": form,
        "version": repository_version(row),
        "changes": recent_changes(row),
        "manages": may_manage(request.user, row.team),
    }
    return render_settings(request, "catalogue/repository.html", _SECTION, context, status)
