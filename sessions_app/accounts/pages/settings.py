"""Shared parts of the settings pages: navigation, forms, and the URLs of login links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from sessions_app.accounts.models import BROWSER_TIME_ZONE, ApiToken, Preferences, TeamRole, time_zone_names
from sessions_app.accounts.teams import NAME_LIMIT


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

    def __init__(self, user: Any, chosen: Preferences, *args: Any, **kwargs: Any):
        initial = {
            "name": user.get_full_name(),
            "email": user.email,
            "time_zone": chosen.time_zone or BROWSER_CHOICE,
            "theme": chosen.theme,
        }
        super().__init__(*args, **{**kwargs, "initial": initial})
        for name, known in (("name", "name"), ("email", "email")):
            self.fields[name].widget.attrs["autocomplete"] = known
        zones = [(BROWSER_CHOICE, "Like this browser"), *((name, name.replace("_", " ")) for name in time_zone_names())]
        self.fields["time_zone"].choices = zones  # type: ignore[attr-defined]
        self.user, self.chosen = user, chosen

    def save(self) -> Preferences:
        """Save user and preferences. Other columns of the user stay unchanged."""
        told = self.cleaned_data
        self.user.first_name, self.user.last_name, self.user.email = told["name"], "", told["email"]
        self.user.save(update_fields=("first_name", "last_name", "email"))
        self.chosen.theme = told["theme"]
        self.chosen.time_zone = BROWSER_TIME_ZONE if told["time_zone"] == BROWSER_CHOICE else told["time_zone"]
        self.chosen.save()
        return self.chosen


class TokenForm(forms.Form):
    """The form for a new API token."""

    name = forms.CharField(max_length=100, label="Purpose", help_text="For example the program that uses it.")
    scope = forms.ChoiceField(choices=ApiToken.Scope.choices, label="May")
    days = forms.TypedChoiceField(choices=TOKEN_LIFETIMES, coerce=int, initial=30, label="Ends after")


class TeamForm(forms.Form):
    """The form for a new team."""

    name = forms.CharField(max_length=NAME_LIMIT, label="Name of the team")


class _RoleForm(forms.Form):
    """Base of the forms with a role."""

    role = forms.ChoiceField(choices=TeamRole.Role.choices, initial=TeamRole.Role.MEMBER, label="As")


class MemberRoleForm(_RoleForm):
    """The form that changes the role of a member."""


class MemberAddForm(_RoleForm):
    """The form that adds an existing account to a team."""

    username = forms.CharField(max_length=NAME_LIMIT, label="User name")
    field_order = ("username", "role")


class MemberInviteForm(_RoleForm):
    """The form that invites a new user to a team."""

    username = forms.CharField(
        max_length=NAME_LIMIT, label="User name", help_text="Letters a to z, digits and @ . + - _"
    )
    email = forms.EmailField(required=False, label="E-mail")
    field_order = ("username", "email", "role")


class AccountForm(forms.Form):
    """The form for a new account without a team."""

    username = forms.CharField(
        max_length=NAME_LIMIT, label="User name", help_text="Letters a to z, digits and @ . + - _"
    )
    email = forms.EmailField(required=False, label="E-mail")
