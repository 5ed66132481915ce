"""Shared parts of the settings pages: navigation, the URLs of login links, and the theme and time zone.

A topic adds its settings page to ``SECTIONS``, extends the template ``accounts/settings.html``, and renders it with
``render_settings``.

Theme and time zone are kept in cookies, so that a page is rendered correctly before any script runs. The user's choice
is stored in ``models.Preferences`` and copied to the cookies of each browser at login.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from sessions_app.accounts.models import Preferences, time_zone_names
from sessions_app.pages.shortcuts import redirect_back

THEME_COOKIE: Final = "kandev_theme"
TIME_ZONE_COOKIE: Final = "kandev_zone"
_COOKIE_MAX_AGE: Final = 365 * 86_400


class SettingsGroup(StrEnum):
    """Whom settings concern; the value is the heading in the navigation."""

    USER = "You"
    WORK = "Work"
    TEAMS = "Teams and people"


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """A settings page in the navigation; ``name`` is the name of its URL."""

    name: str
    title: str
    group: SettingsGroup
    for_staff: bool = False


SECTIONS: Final = (
    SettingsSection("settings-profile", "Profile", SettingsGroup.USER),
    SettingsSection("settings-password", "Password and logins", SettingsGroup.USER),
    SettingsSection("settings-notifications", "Notifications", SettingsGroup.USER),
    SettingsSection("settings-tokens", "API tokens", SettingsGroup.USER),
    SettingsSection("settings-agents", "Agents", SettingsGroup.WORK),
    SettingsSection("settings-executors", "Executors", SettingsGroup.WORK, for_staff=True),
    SettingsSection("settings-repositories", "Repositories", SettingsGroup.WORK),
    SettingsSection("settings-members", "Members", SettingsGroup.TEAMS),
    SettingsSection("settings-teams", "Teams", SettingsGroup.TEAMS),
    SettingsSection("settings-people", "People", SettingsGroup.TEAMS, for_staff=True),
)
"""The sections of each group are next to each other, in the order of the navigation."""


def render_settings(
    request: HttpRequest, template: str, section: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Render a settings page with the navigation to the others."""
    staff = getattr(request.user, "is_staff", False)
    shown = [one for one in SECTIONS if staff or not one.for_staff]
    groups = [
        (group, [{"title": one.title, "url": reverse(one.name), "here": one.name == section} for one in members])
        for group, members in groupby(shown, lambda one: one.group)
    ]
    return render(request, template, {"section_groups": groups, **context}, status=status)


def login_link_url(request: HttpRequest, secret: str) -> str:
    """Return the absolute URL of a login link, on the host of this request, which ALLOWED_HOSTS has checked."""
    return request.build_absolute_uri(reverse("login-link", args=(secret,)))


def appearance(request: HttpRequest) -> dict[str, str]:
    """Add to every template ``theme`` (system, light or dark) and ``zone`` (a time zone; empty for the browser's)."""
    return {
        "theme": current_theme(request),
        "zone": _known_or_default(request.COOKIES.get(TIME_ZONE_COOKIE, ""), time_zone_names(), ""),
    }


def current_theme(request: HttpRequest) -> str:
    """Return the theme of this browser, from its cookie."""
    return _known_or_default(request.COOKIES.get(THEME_COOKIE, ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)


def _known_or_default(value: str, known: Any, default: str) -> str:
    if value in known:
        return value
    return default


def remember_appearance(response: HttpResponse, user: User) -> None:
    """Set the cookies to the choice of ``user``; without a stored choice, leave them unchanged."""
    chosen = Preferences.objects.filter(user_id=user.pk).first()
    if chosen is not None:
        _set_cookie(response, THEME_COOKIE, chosen.theme)
        _set_cookie(response, TIME_ZONE_COOKIE, chosen.time_zone)


def _set_cookie(response: HttpResponse, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_COOKIE_MAX_AGE, secure=bool(settings.SESSION_COOKIE_SECURE), httponly=True, samesite="Lax"
    )


@login_not_required
@require_POST
def change_theme(request: HttpRequest) -> HttpResponse:
    """Handle the theme switch in the page header. For a logged-in user, also store the choice for other browsers."""
    theme = _known_or_default(request.POST.get("theme", ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)
    if request.user.is_authenticated:
        Preferences.objects.update_or_create(user_id=request.user.pk, defaults={"theme": theme})
    response = redirect_back(request, "/")
    _set_cookie(response, THEME_COOKIE, theme)
    return response
