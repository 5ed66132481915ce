"""Settings of teams (members, invitations, recovery policy); for staff also those of all accounts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from sessions_app.accounts import teams
from sessions_app.accounts.audit import recent_changes
from sessions_app.accounts.authorization import managed_teams, may_manage, team_permissions
from sessions_app.accounts.belongings import find_belongings
from sessions_app.accounts.forms import (
    AccountForm,
    MemberAddForm,
    MemberChangeForm,
    MemberInviteForm,
    TeamForm,
    TeamPolicyForm,
)
from sessions_app.accounts.models import LoginLink, TeamRole
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import login_link_url, render_settings
from sessions_app.catalogue.services.repositories import without_scratch
from sessions_app.kernel.services.errors import NotFound, SessionsError
from sessions_app.pages.labels import POLICY_LABELS
from sessions_app.pages.shortcuts import READ_METHODS, form_status, redirect_back
from sessions_app.recovery.services import policies


@never_cache
def list_teams(request: UserHttpRequest) -> HttpResponse:
    """List the teams that the user may see. A POST by staff creates one."""
    if request.method != "POST":
        return _render_teams(request, TeamForm())
    if not request.user.is_staff:
        raise PermissionDenied
    form = TeamForm(request.POST)
    if form.is_valid():
        try:
            return redirect("settings-team", teams.create_team(form.cleaned_data["name"]).pk)
        except SessionsError as error:
            form.add_error("name", error.message)
    return _render_teams(request, form, 422)


def _render_teams(request: UserHttpRequest, form: TeamForm, status: int = 200) -> HttpResponse:
    """Render the visible teams, each with the user's role in it; empty if the user is not a member."""
    roles = teams.roles_by_team(request.user)
    rows = [(team, roles.get(team.pk, "")) for team in teams.visible_teams(request.user)]
    return render_settings(request, "accounts/teams.html", "settings-teams", {"teams": rows, "form": form}, status)


TEAM_PERMISSIONS: Final = {
    "merge_branches": "merge branches of sessions",
    "push_branches": "push branches of sessions",
    "operate_unisolated": "use shells and write files where agents are not isolated",
}
"""What all members of a team may do with a permission."""


@never_cache
@require_safe
def show_team(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Show the members of a team, with forms to change them for users who manage the team."""
    return _render_team(request, find_visible_team(request, team_id))


def find_visible_team(request: UserHttpRequest, team_id: int) -> Group:
    """Return a visible team. Raises Http404 for others, and PermissionDenied for a write without managing the team."""
    found: Group = get_object_or_404(teams.visible_teams(request.user), id=team_id)
    if request.method not in READ_METHODS and not may_manage(request.user, found):
        raise PermissionDenied
    return found


def _render_team(request: UserHttpRequest, found: Group, status: int = 200, **more: Any) -> HttpResponse:
    permissions = team_permissions(found)
    context = {
        "team": found,
        "members": teams.list_members(found),
        "manages": may_manage(request.user, found),
        "roles": TeamRole.Role.choices,
        "invite_form": MemberInviteForm(prefix="new"),
        "add_form": MemberAddForm(prefix="add"),
        "permissions": [text for name, text in TEAM_PERMISSIONS.items() if name in permissions],
        "changes": recent_changes(found),
        "repositories": without_scratch(found.repositories.order_by("name")),
        **more,
    }
    return render_settings(request, "accounts/team.html", "settings-teams", context, status)


@never_cache
@require_POST
def invite_team_member(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Create an account in the team. Only this response shows the login link for the new user."""
    found = find_visible_team(request, team_id)
    form = MemberInviteForm(request.POST, prefix="new")
    if form.is_valid():
        try:
            user, secret = teams.invite_member(found, by=request.user, **form.cleaned_data)
            link = login_link_url(request, secret)
            return _render_team(request, found, 201, invited=user, link=link)
        except SessionsError as error:
            form.add_error(None, error.message)
    return _render_team(request, found, 422, invite_form=form)


@require_POST
def add_team_member(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Add an existing account to the team."""
    found = find_visible_team(request, team_id)
    form = MemberAddForm(request.POST, prefix="add")
    if form.is_valid():
        try:
            user = teams.add_member(found, by=request.user, **form.cleaned_data)
            messages.success(request, f"{user.get_username()} is now in {found.name}.")
            return redirect("settings-team", found.pk)
        except SessionsError as error:
            form.add_error("username", error.message)
    return _render_team(request, found, 422, add_form=form)


@never_cache
def edit_team_member(request: UserHttpRequest, team_id: int, user_id: int) -> HttpResponse:
    """Show a member of the team, and what happens if they leave it. A POST changes the role."""
    found = find_visible_team(request, team_id)
    if not may_manage(request.user, found):
        raise PermissionDenied
    if request.method in READ_METHODS:
        return _render_member(request, found, user_id)
    form = MemberChangeForm(request.POST)
    if not form.is_valid():
        return _render_team(request, found, 422)
    role, seen = form.cleaned_data["role"], form.cleaned_data["seen"]
    return _redirect_to_team(
        request,
        found,
        lambda: teams.change_role(found, user_id, role, request.user, seen),
        f"is {role} of {found.name} now",
    )


def _render_member(request: UserHttpRequest, found: Group, user_id: int) -> HttpResponse:
    member = teams.find_member(found, user_id)
    if member is None:
        raise Http404("no such member")
    context = {
        "team": found,
        "member": member,
        "belongings": find_belongings(found, member.user),
        "is_last_admin": teams.is_last_admin(found, member.user),
        "roles": TeamRole.Role.choices,
    }
    return render_settings(request, "accounts/member.html", "settings-members", context)


MAX_TEAMS_SHOWN: Final = 20


@never_cache
@require_safe
def list_all_members(request: UserHttpRequest) -> HttpResponse:
    """List the members of the teams that the user may see, with forms to change them in teams that the user manages."""
    visible = list(teams.visible_teams(request.user)[: MAX_TEAMS_SHOWN + 1])
    shown = visible[:MAX_TEAMS_SHOWN]
    members = teams.members_by_team(shown)
    managed = {team.pk for team in shown}
    if not request.user.is_staff:
        managed &= set(managed_teams(request.user).values_list("id", flat=True))
    context = {
        "rows": [(team, members[team.pk], team.pk in managed) for team in shown],
        "has_more": len(visible) > MAX_TEAMS_SHOWN,
        "roles": TeamRole.Role.choices,
    }
    return render_settings(request, "accounts/members.html", "settings-members", context)


@require_POST
def remove_team_member(request: UserHttpRequest, team_id: int, user_id: int) -> HttpResponse:
    """Remove a member from the team."""
    found = find_visible_team(request, team_id)
    result = f"is no longer in {found.name}. Pages that they have open close within five seconds"
    seen = request.POST.get("seen", "")
    return _redirect_to_team(request, found, lambda: teams.remove_member(found, user_id, request.user, seen), result)


def _redirect_to_team(request: UserHttpRequest, found: Group, act: Callable[[], Any], result: str) -> HttpResponse:
    try:
        user = act()
    except NotFound:
        raise Http404 from None
    except SessionsError as error:
        messages.error(request, error.message)
        return redirect("settings-team", found.pk)
    messages.success(request, f"{user.get_username()} {result}.")
    if teams.visible_teams(request.user).filter(id=found.pk).exists():
        return redirect_back(request, reverse("settings-team", args=[found.pk]))
    return redirect("settings-teams")


MAX_ACCOUNTS_SHOWN: Final = 100


def _staff_only(view: Any) -> Any:
    @wraps(view)
    def guarded(request: UserHttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not getattr(request.user, "is_staff", False):
            raise PermissionDenied
        answer: HttpResponse = view(request, *args, **kwargs)
        return answer

    return guarded


@_staff_only
@never_cache
def manage_accounts(request: UserHttpRequest) -> HttpResponse:
    """List and search accounts. A POST creates one; only its response shows the login link for the new user."""
    if request.method != "POST":
        return _render_accounts(request, AccountForm())
    form = AccountForm(request.POST)
    if form.is_valid():
        try:
            user, secret = teams.invite_member(None, role="", by=request.user, **form.cleaned_data)
            return _render_accounts(
                request, AccountForm(), 201, given_to=user, link=login_link_url(request, secret), is_new=True
            )
        except SessionsError as error:
            form.add_error(None, error.message)
    return _render_accounts(request, form, 422)


@_staff_only
@never_cache
@require_POST
def show_login_link(request: UserHttpRequest, user_id: int) -> HttpResponse:
    """Create a link for another user to log in or to set a new password, and show it once."""
    user = get_object_or_404(get_user_model(), pk=user_id, is_active=True)
    if not teams.may_manage_account(request.user, user):
        raise PermissionDenied
    if request.POST.get("purpose") == "password":
        purpose = LoginLink.Purpose.PASSWORD
    else:
        purpose = LoginLink.Purpose.LOGIN
    secret = teams.create_login_link(user, purpose, request.user)
    more = {"given_to": user, "link": login_link_url(request, secret), "purpose": purpose.value}
    return _render_accounts(request, AccountForm(), 201, **more)


@_staff_only
@never_cache
@require_POST
def change_account_active(request: UserHttpRequest, user_id: int) -> HttpResponse:
    """Activate (``active=1``) or deactivate another user's account."""
    user = get_object_or_404(get_user_model(), pk=user_id)
    if not teams.may_manage_account(request.user, user):
        raise PermissionDenied
    active = request.POST.get("active") == "1"
    try:
        teams.set_account_active(user, request.user, active=active)
    except SessionsError as error:
        messages.error(request, error.message)
    else:
        state = "now inactive"
        if active:
            state = "active again"
        messages.success(request, f"{user.get_username()} is {state}.")
    return redirect("settings-people")


def _render_accounts(request: UserHttpRequest, form: AccountForm, status: int = 200, **more: Any) -> HttpResponse:
    search = request.GET.get("q", "").strip()[:150]
    rows = get_user_model().objects.order_by("-is_active", "username").prefetch_related("groups")
    if search:
        rows = rows.filter(Q(username__icontains=search) | Q(first_name__icontains=search) | Q(email__icontains=search))
    shown = [(user, teams.may_manage_account(request.user, user)) for user in rows[:MAX_ACCOUNTS_SHOWN]]
    context = {"people": shown, "total": rows.count(), "search": search, "form": form, **more}
    return render_settings(request, "accounts/people.html", "settings-people", context, status)


@never_cache
def edit_team_policy(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Show the recovery policy of a team. A POST by a user who manages the team changes it."""
    team = find_visible_team(request, team_id)
    policy = policies.team_policy_json(team)
    continues = {True: "on", False: "off", None: ""}[policy["continue_prompts"]]
    form = TeamPolicyForm(request.POST or None, initial={"policy": policy["policy"], "continues": continues})
    if request.method == "POST" and form.is_valid():
        policies.set_team_policy(team, form.values(), request.user)
        messages.success(request, "Saved. It applies from the next recovery check of the team’s sessions.")
        return redirect("settings-team-policy", team.pk)
    context = {
        "team": team,
        "form": form,
        "manages": may_manage(request.user, team),
        "effective": policy["effective"],
        "effective_label": POLICY_LABELS[policy["effective"]["policy"]],
        "labels": POLICY_LABELS.values(),
    }
    return render_settings(request, "accounts/team_policy.html", "settings-teams", context, form_status(form))
