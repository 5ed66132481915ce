"""The settings pages of agent profiles: list, add, change, test, disable, delete."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from executors_app.agents import AgentType
from executors_app.encryption import SecretUnreadable
from executors_app.models import PROFILE_SECRETS, AgentProfile
from executors_app.plugins import UnknownPlugin, agent_type, listed_agent_types, missing_programs
from sessions_app.accounts.audit import recent_changes
from sessions_app.accounts.authorization import managed_teams
from sessions_app.accounts.guarded_settings import may_enable
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.settings import render_settings
from sessions_app.agents.profile_forms import ProfileForm, ProfileServerForm, initial_of, stored_names
from sessions_app.agents.services import profile_settings
from sessions_app.kernel.rules.wording import describe_uses
from sessions_app.kernel.services.errors import DisabledByStaff, ReadOnly, SessionsError, SettingsChanged
from sessions_app.sessions.rules.situation_facts import Label

SECTION: Final = "settings-agents"
PROFILE: Final = "settings-profile-of-agent"
POPULAR: Final = ("claude_code", "codex", "opencode", "gemini", "copilot", "goose", "cursor", "qwen")
"""Agent types that are offered before a search, in this order."""
WITHOUT_A_PROGRAM: Final = ("demo", "custom_acp", "openai_chat")
MAX_PROFILES: Final = 200
SEARCH_LIMIT: Final = 100
_RESULTS: Final = {
    "disable": "{} is disabled: no new session can use it. Sessions that have it go on.",
    "enable": "{} is enabled.",
}
_INVALID: Final = 422
_CONFLICT: Final = 409


def _kind_of(name: str) -> AgentType | None:
    """Return an agent type; None if this installation no longer has it."""
    try:
        return agent_type(name)
    except UnknownPlugin:
        return None


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile in the list."""

    profile: AgentProfile
    kind: AgentType | None
    may_edit: bool
    may_enable: bool

    @property
    def title(self) -> str:
        """What its agent is called."""
        return self.kind.title if self.kind else self.profile.agent_type

    @property
    def status(self) -> Label:
        """Whether sessions can use it, as far as this machine knows."""
        if self.profile.disabled_at is not None:
            return Label("Disabled", "off")
        if self.kind is None:
            return Label("Unknown type", "bad")
        if not self.profile.command and missing_programs(self.kind):
            return Label("Not installed here", "off")
        return Label("Enabled", "good")


@never_cache
@require_safe
def list_profile_settings(request: UserHttpRequest) -> HttpResponse:
    """List the agent profiles that the user can use, or as staff all of them; disabled ones last."""
    managed = set(managed_teams(request.user).values_list("pk", flat=True))
    profiles = profile_settings.listed_profiles(request.user).defer(*PROFILE_SECRETS)[:MAX_PROFILES]
    rows = []
    for profile in profiles:
        may_edit = request.user.is_staff or profile.team_id in managed
        rows.append(
            ProfileRow(profile, _kind_of(profile.agent_type), may_edit, may_edit and may_enable(request.user, profile))
        )
    rows.sort(key=lambda row: row.profile.disabled_at is not None)
    return render_settings(request, "agents/profiles.html", SECTION, {"rows": rows})


@never_cache
@require_safe
def choose_agent_type(request: UserHttpRequest) -> HttpResponse:
    """Offer the popular agent types, or those whose name contains ``?q=``."""
    _require_staff(request)
    search = request.GET.get("q", "").strip()[:SEARCH_LIMIT]
    listed = listed_agent_types()
    context = {"search": search, "found": _matching(listed, search), "count": len(listed)}
    if not search:
        by_name = {kind.name: (kind, missing) for kind, missing in listed}
        context["popular"] = [by_name[name] for name in POPULAR if name in by_name]
        context["others"] = [by_name[name] for name in WITHOUT_A_PROGRAM if name in by_name]
    return render_settings(request, "agents/profile_new.html", SECTION, context)


def _matching(listed: Sequence[tuple[AgentType, list[str]]], search: str) -> list[tuple[AgentType, list[str]]]:
    if not search:
        return []
    return [each for each in listed if search.casefold() in f"{each[0].title} {each[0].name}".casefold()]


def _require_staff(request: UserHttpRequest) -> None:
    if not request.user.is_staff:
        raise PermissionDenied


@sensitive_post_parameters("key", "variables")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def add_profile(request: UserHttpRequest, name: str) -> HttpResponse:
    """Show the form for a new profile of an agent type. A POST adds it."""
    _require_staff(request)
    kind = _kind_of(name)
    if kind is None:
        raise Http404(name)
    initial = {"name": kind.title}
    form = ProfileForm(kind, profile_settings.STAFF_FIELDS, request.POST or None, initial=initial, profile=None)
    if request.method == "POST" and form.is_valid():
        try:
            made = profile_settings.add_profile({**form.values(), "agent_type": kind.name}, request.user)
        except SessionsError as error:
            _show_error(form, error)
        else:
            messages.success(request, f"{made.name} was added. Test it before the first task.")
            return redirect(PROFILE, made.pk)
    context = {"form": form, "kind": kind, "profile": None, "missing": missing_programs(kind)}
    return render_settings(request, "agents/profile_form.html", SECTION, context, _INVALID if form.errors else 200)


@sensitive_post_parameters("key", "variables")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def edit_profile(request: UserHttpRequest, profile_id: uuid.UUID) -> HttpResponse:
    """Show the settings of a profile. A POST changes them, if nobody else has done so since they were shown."""
    profile = _find(request, profile_id)
    allowed = profile_settings.fields_for(request.user, profile)
    kind = _kind_of(profile.agent_type)
    if request.method != "POST":
        form = ProfileForm(kind, allowed, initial=initial_of(profile), profile=profile)
        return _render_form(request, profile, form)
    version = request.POST.get("version", "")
    form = ProfileForm(kind, allowed, request.POST, profile=profile)
    if not form.is_valid():
        return _render_form(request, profile, form, _INVALID, version=version)
    try:
        profile_settings.change_profile(profile.pk, form.values(), version, request.user)
    except SettingsChanged as error:
        return _render_form(request, profile, form, _CONFLICT, conflict=error.message)
    except SessionsError as error:
        _show_error(form, error)
        return _render_form(request, profile, form, _INVALID, version=version)
    messages.success(request, "Saved. It applies to agents that start from now on.")
    return redirect(PROFILE, profile.pk)


def _find(request: UserHttpRequest, profile_id: uuid.UUID) -> AgentProfile:
    """Return a profile that the user sees. Raises PermissionDenied if the user may change nothing of it."""
    profile: AgentProfile = get_object_or_404(profile_settings.listed_profiles(request.user), pk=profile_id)
    if not profile_settings.fields_for(request.user, profile):
        raise PermissionDenied
    return profile


def _show_error(form: ProfileForm, error: SessionsError) -> None:
    field = {"env": "variables", "mcp_servers": "removed_servers"}.get(str(error.details.get("field", "")), "")
    field = field or str(error.details.get("field", ""))
    form.add_error(field if field in form.fields else None, error.message)


def _render_form(
    request: UserHttpRequest,
    profile: AgentProfile,
    form: ProfileForm,
    status: int = 200,
    *,
    version: str | None = None,
    conflict: str = "",
    server_form: ProfileServerForm | None = None,
) -> HttpResponse:
    """Render the form; after a ``conflict`` with what is stored now beside what was entered, but never a secret."""
    stored: list[tuple[str, Any]] = []
    if conflict:
        now = initial_of(profile)
        stored = [
            (str(field.label or name.capitalize()), field.prepare_value(now[name]))
            for name, field in form.fields.items()
            if name in now
        ]
        stored.append(("Variables that are set", ", ".join(stored_names(profile)[0])))
    context = {
        "form": form,
        "kind": form.kind,
        "profile": profile,
        "unreadable": _is_unreadable(profile),
        "servers": stored_names(profile)[1],
        "missing": [] if form.kind is None or profile.command else missing_programs(form.kind),
        "version": profile_settings.version_of(profile) if version is None else version,
        "conflict": conflict,
        "stored": stored,
        "changes": recent_changes(profile),
        "may_delete": request.user.is_staff,
        "may_enable": may_enable(request.user, profile),
        "server_form": server_form or ProfileServerForm(auto_id="server-%s"),
    }
    return render_settings(request, "agents/profile_form.html", SECTION, context, status)


def _is_unreadable(profile: AgentProfile) -> bool:
    try:
        return not isinstance(profile.env, dict) or not isinstance(profile.mcp_servers, list)
    except SecretUnreadable:
        return True


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def confirm_profile_deletion(request: UserHttpRequest, profile_id: uuid.UUID) -> HttpResponse:
    """Say what depends on a profile. A POST deletes one that nothing uses."""
    _require_staff(request)
    profile = _find(request, profile_id)
    status, problem = 200, ""
    if request.method == "POST":
        try:
            profile_settings.delete_profile(profile.pk, request.user)
        except SessionsError as error:
            status, problem = _CONFLICT, error.message
        else:
            messages.success(request, f"{profile.name} was deleted.")
            return redirect(SECTION)
    uses = describe_uses(profile_settings.uses_of_profile(profile))
    context = {"profile": profile, "uses": uses, "problem": problem}
    return render_settings(request, "agents/profile_delete.html", SECTION, context, status)


@sensitive_post_parameters("values", "target")
@never_cache
@require_POST
def put_profile_server(request: UserHttpRequest, profile_id: uuid.UUID) -> HttpResponse:
    """Add an MCP server to a profile, or replace the one of its name."""
    _require_staff(request)
    profile = _find(request, profile_id)
    version = request.POST.get("version", "")
    servers = ProfileServerForm(request.POST, auto_id="server-%s")
    status = _INVALID
    if servers.is_valid():
        try:
            profile_settings.put_mcp_server(profile.pk, servers.server(), version, request.user)
        except ValueError as error:
            servers.add_error("target", f"This is not a valid command: {error}.")
        except SettingsChanged as error:
            servers.add_error(None, error.message)
            status, version = _CONFLICT, profile_settings.version_of(profile)
        except SessionsError as error:
            servers.add_error(None, error.message)
        else:
            messages.success(request, "Saved. It applies from the next start of an agent.")
            return redirect(PROFILE, profile.pk)
    allowed = profile_settings.fields_for(request.user, profile)
    form = ProfileForm(_kind_of(profile.agent_type), allowed, initial=initial_of(profile), profile=profile)
    return _render_form(request, profile, form, status, version=version, server_form=servers)


@require_POST
def act_on_profile(request: UserHttpRequest, profile_id: uuid.UUID, action: str) -> HttpResponse:
    """Disable or enable a profile; 404 for any other action."""
    if action not in ("disable", "enable"):
        raise Http404(action)
    profile = _find(request, profile_id)
    try:
        profile_settings.set_disabled(profile.pk, request.user, disabled=action == "disable")
    except ReadOnly as error:
        raise PermissionDenied from error
    except DisabledByStaff as error:
        messages.error(request, error.message)
    except SessionsError as error:
        raise Http404(action) from error
    else:
        messages.success(request, _RESULTS[action].format(profile.name))
    if request.POST.get("from") == "list":
        return redirect(SECTION)
    return redirect(PROFILE, profile.pk)
