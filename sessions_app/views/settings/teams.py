"""Teams: who is in one, and as what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from sessions_app.models import TeamRole
from sessions_app.services import teams as people
from sessions_app.services.errors import NotFound, SessionsError
from sessions_app.services.rights import may_manage
from sessions_app.views.found import READS
from sessions_app.views.settings.forms import AddForm, InviteForm, RoleForm, TeamForm
from sessions_app.views.settings.links import address_of_link
from sessions_app.views.settings.sections import show


@never_cache
def teams(request: HttpRequest) -> HttpResponse:
    """The teams that one sees; staff makes new ones."""
    form = TeamForm(request.POST if request.method == "POST" else None)
    if request.method == "POST":
        if not request.user.is_staff:
            raise PermissionDenied
        if form.is_valid():
            try:
                return redirect("settings-team", people.make_team(form.cleaned_data["name"]).pk)
            except SessionsError as error:
                form.add_error("name", error.message)
    roles = people.roles_of(request.user)
    rows = [(team, roles[team.pk].value if team.pk in roles else "") for team in people.shown_teams(request.user)]
    context = {"teams": rows, "form": form}
    return show(request, "settings/teams.html", "settings-teams", context, 422 if form.errors else 200)


@never_cache
@require_safe
def team(request: HttpRequest, team_id: int) -> HttpResponse:
    """One team: its members, and for who looks after it the ways to change them."""
    return _page(request, find_team(request, team_id))


def find_team(request: HttpRequest, team_id: int) -> Group:
    """A team that one sees; Http404 for any other, PermissionDenied for a change by who does not look after it."""
    found: Group = get_object_or_404(people.shown_teams(request.user), id=team_id)
    if request.method not in READS and not may_manage(request.user, found):
        raise PermissionDenied
    return found


def _page(request: HttpRequest, found: Group, status: int = 200, **more: Any) -> HttpResponse:
    context = {
        "team": found,
        "members": people.members_of(found),
        "manages": may_manage(request.user, found),
        "roles": TeamRole.Role.choices,
        "invite_form": InviteForm(prefix="new"),
        "add_form": AddForm(prefix="add"),
        **more,
    }
    return show(request, "settings/team.html", "settings-teams", context, status)


@never_cache
@require_POST
def invite(request: HttpRequest, team_id: int) -> HttpResponse:
    """A new person; the link that they come in with is in this answer and nowhere else."""
    found = find_team(request, team_id)
    form = InviteForm(request.POST, prefix="new")
    if form.is_valid():
        try:
            user, secret = people.invite(found, by=request.user, **form.cleaned_data)
            link = address_of_link(request, secret)
            return _page(request, found, 201, invited=user, link=link)
        except SessionsError as error:
            form.add_error(None, error.message)
    return _page(request, found, 422, invite_form=form)


@require_POST
def add(request: HttpRequest, team_id: int) -> HttpResponse:
    """Somebody who has an account already."""
    found = find_team(request, team_id)
    form = AddForm(request.POST, prefix="add")
    if form.is_valid():
        try:
            user = people.add_member(found, **form.cleaned_data)
            messages.success(request, f"{user.get_username()} is in {found.name} now.")
            return redirect("settings-team", found.pk)
        except SessionsError as error:
            form.add_error("username", error.message)
    return _page(request, found, 422, add_form=form)


@require_POST
def change(request: HttpRequest, team_id: int, user_id: int) -> HttpResponse:
    """Another role for a member."""
    found = find_team(request, team_id)
    form = RoleForm(request.POST)
    if not form.is_valid():
        return _page(request, found, 422)
    role = form.cleaned_data["role"]
    return _done(request, found, lambda: people.change_role(found, user_id, role), f"is {role} of {found.name} now")


@require_POST
def remove(request: HttpRequest, team_id: int, user_id: int) -> HttpResponse:
    """Take a member out."""
    found = find_team(request, team_id)
    said = f"is no longer in {found.name}. What is open in their browsers closes within five seconds"
    return _done(request, found, lambda: people.remove_member(found, user_id), said)


def _done(request: HttpRequest, found: Group, act: Callable[[], Any], said: str) -> HttpResponse:
    try:
        user = act()
    except NotFound:
        raise Http404 from None
    messages.success(request, f"{user.get_username()} {said}.")
    still = people.shown_teams(request.user).filter(id=found.pk).exists()
    return redirect("settings-team", found.pk) if still else redirect("settings-teams")
