"""Shared parts of the settings pages: navigation, forms, the URLs of login links, and the theme and time zone.

Theme and time zone are kept in cookies, so that a page is rendered correctly before any script runs. The user's choice
is stored in ``models.Preferences`` and copied to the cookies of each browser at login.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST

from sessions_app.accounts.models import BROWSER_TIME_ZONE, ApiToken, Preferences, TeamRole, time_zone_names
from sessions_app.accounts.teams import NAME_LIMIT
from sessions_app.pages.shortcuts import redirect_back

THEME_COOKIE: Final = "kandev_theme"
TIME_ZONE_COOKIE: Final = "kandev_zone"
_COOKIE_MAX_AGE: Final = 365 * 86_400


@dataclass(frozen=True, slots=True)
class SettingsSection:
    """A settings page in the navigation; ``name`` is the name of its URL."""

    name: str
    title: str
    for_staff: bool = False


SECTIONS: Final = (
    SettingsSection("settings-profile", "Profile"),
    SettingsSection("settings-password", "Password and logins"),
    SettingsSection("settings-notifications", "Notifications"),
    SettingsSection("settings-tokens", "API tokens"),
    SettingsSection("settings-teams", "Teams"),
    SettingsSection("settings-people", "People", for_staff=True),
)


def render_settings(
    request: HttpRequest, template: str, section: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Render a settings page with the navigation to the others."""
    staff = getattr(request.user, "is_staff", False)
    shown = [
        {"title": one.title, "url": reverse(one.name), "here": one.name == section}
        for one in SECTIONS
        if staff or not one.for_staff
    ]
    return render(request, template, {"sections": shown, **context}, status=status)


def login_link_url(request: HttpRequest, secret: str) -> str:
    """Return the absolute URL of a login link, on the host of this request, which ALLOWED_HOSTS has checked."""
    return request.build_absolute_uri(reverse("login-link", args=(secret,)))


BROWSER_CHOICE: Final = "browser"
TOKEN_LIFETIMES: Final = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "One year"))


class ProfileForm(forms.Form):
    """The form for name, e-mail address, time zone and theme."""

    name = forms.CharField(max_length=150, required=False, label="Name", help_text="Shown next to your actions.")
    email = forms.EmailField(required=False, label="E-mail", help_text="Used for notifications.")
    time_zone = forms.ChoiceField(label="Time zone", help_text="Times on the pages are shown in this zone.")
    theme = forms.ChoiceField(choices=Preferences.Theme.choices, label="Theme", widget=forms.RadioSelect)

    def __init__(self, user: User, chosen: Preferences, *args: Any, **kwargs: Any):
        initial = {
            "name": user.get_full_name(),
            "email": user.email,
            "time_zone": chosen.time_zone or BROWSER_CHOICE,
            "theme": chosen.theme,
        }
        super().__init__(*args, **{**kwargs, "initial": initial})
        for name, known in (("name", "name"), ("email", "email")):
            self.fields[name].widget.attrs["autocomplete"] = known
        zones = [
            (BROWSER_CHOICE, "As in this browser"),
            *((name, name.replace("_", " ")) for name in time_zone_names()),
        ]
        self.fields["time_zone"].choices = zones  # type: ignore[attr-defined]
        self.user, self.chosen = user, chosen

    def save(self) -> Preferences:
        """Save user and preferences. Other columns of the user stay unchanged."""
        values = self.cleaned_data
        self.user.first_name, self.user.last_name, self.user.email = values["name"], "", values["email"]
        self.user.save(update_fields=("first_name", "last_name", "email"))
        self.chosen.theme = values["theme"]
        self.chosen.time_zone = values["time_zone"]
        if values["time_zone"] == BROWSER_CHOICE:
            self.chosen.time_zone = BROWSER_TIME_ZONE
        self.chosen.save()
        return self.chosen


class TokenForm(forms.Form):
    """The form for a new API token."""

    name = forms.CharField(max_length=100, label="Purpose", help_text="For example, the program that uses it.")
    scope = forms.ChoiceField(choices=ApiToken.Scope.choices, label="May")
    days = forms.TypedChoiceField(choices=TOKEN_LIFETIMES, coerce=int, initial=30, label="Expires after")


class TeamForm(forms.Form):
    """The form for a new team."""

    name = forms.CharField(max_length=NAME_LIMIT, label="Name of the team")


class MemberRoleForm(forms.Form):
    """The form that changes the role of a member."""

    role = forms.ChoiceField(choices=TeamRole.Role.choices, initial=TeamRole.Role.MEMBER, label="As")


class MemberAddForm(MemberRoleForm):
    """The form that adds an existing account to a team."""

    username = forms.CharField(max_length=NAME_LIMIT, label="User name")
    field_order = ("username", "role")


class AccountForm(forms.Form):
    """The form for a new account without a team."""

    username = forms.CharField(
        max_length=NAME_LIMIT, label="User name", help_text="Letters a to z, digits and @ . + - _"
    )
    email = forms.EmailField(required=False, label="E-mail")


class MemberInviteForm(MemberRoleForm, AccountForm):
    """The form that invites a new user to a team."""

    field_order = ("username", "email", "role")


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
