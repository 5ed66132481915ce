"""The forms of the settings pages: profile, API tokens, teams and their members, and a team's recovery policy."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib.auth.models import User

from sessions_app.accounts.models import BROWSER_TIME_ZONE, ApiToken, Preferences, TeamRole, time_zone_names
from sessions_app.accounts.teams import NAME_LIMIT
from sessions_app.pages.labels import POLICY_LABELS

BROWSER_CHOICE: Final = "browser"
TOKEN_LIFETIMES: Final = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "One year"))
CONTINUE_CHOICES: Final = {"": None, "on": True, "off": False}


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


class MemberChangeForm(MemberRoleForm):
    """The form that changes the role of a member, with the role that the page showed."""

    seen = forms.ChoiceField(choices=TeamRole.Role.choices, required=False, widget=forms.HiddenInput)


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


class TeamPolicyForm(forms.Form):
    """The form for a team's recovery policy."""

    policy = forms.ChoiceField(
        choices=[("", "As the deployment says"), *((key, word.text) for key, word in POLICY_LABELS.items())],
        required=False,
        label="After a restart",
    )
    continues = forms.ChoiceField(
        choices=[("", "As the deployment says"), ("on", "Continue it"), ("off", "Leave it to a person")],
        required=False,
        label="Interrupted work",
    )

    def values(self) -> dict[str, Any]:
        """Return the values for ``policies.set_team_policy``; for valid forms only."""
        values = self.cleaned_data
        return {"policy": values["policy"], "continue_prompts": CONTINUE_CHOICES[values["continues"]]}
