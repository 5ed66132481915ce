"""The forms for e-mail settings, devices and webhooks."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib.auth.models import Group, User

from sessions_app.accounts.authorization import managed_teams
from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, LOOK_KINDS
from sessions_app.notifications.models import DIGEST_CHOICES, NOTIFIED_KINDS, NotificationSettings, PushDevice
from sessions_app.notifications.push_devices import Subscription
from sessions_app.notifications.user_settings import kinds_for
from sessions_app.notifications.web_push import MAX_ENDPOINT_LENGTH

ACTION_KINDS: Final = [kind for kind in NOTIFIED_KINDS if kind not in LOOK_KINDS]
"""Kinds that need an action: the first choice for a device."""


def _kinds_field() -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(
        choices=(), required=False, widget=forms.CheckboxSelectMultiple, label="When", initial=list(NOTIFIED_KINDS)
    )


class _KindsForm(forms.Form):
    """A form in which a user chooses among the kinds of items that the user can be told of."""

    def __init__(self, user: User, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        choices = [(kind, ATTENTION_KIND_LABELS[kind].text) for kind in kinds_for(user)]
        for field in self.fields.values():
            if isinstance(field, forms.MultipleChoiceField):
                field.choices = choices


class EmailForm(_KindsForm):
    """The form for e-mail settings."""

    email = forms.BooleanField(required=False, label="Send me e-mail")
    kinds = _kinds_field()
    every = forms.TypedChoiceField(
        choices=DIGEST_CHOICES, coerce=int, label="At most", help_text="Items in between are combined into one e-mail."
    )
    only_mine = forms.BooleanField(required=False, label="Only for sessions that I own")
    minimum_share = forms.IntegerField(
        min_value=0,
        max_value=100,
        label="Only when this percentage of the agents is waiting",
        help_text="0: as soon as one is waiting.",
    )

    @classmethod
    def of(cls, user: User, chosen: NotificationSettings) -> EmailForm:
        """Return the form with the user's settings."""
        return cls(user, initial={name: getattr(chosen, name) for name in cls.base_fields})


class BrowserForm(_KindsForm):
    """The form for notifications that a browser shows."""

    browser_kinds = _kinds_field()

    @classmethod
    def of(cls, user: User, chosen: NotificationSettings) -> BrowserForm:
        """Return the form with the user's settings."""
        return cls(user, initial={"browser_kinds": chosen.browser_kinds.split()}, auto_id="browser-%s")


class DeviceForm(_KindsForm):
    """The form for the kinds that are pushed to a device."""

    kinds = _kinds_field()

    @classmethod
    def of(cls, device: PushDevice) -> DeviceForm:
        """Return the form with the present kinds of a device."""
        return cls(device.user, initial={"kinds": device.kinds}, auto_id=f"device-{device.id}-%s")


class NewDeviceForm(DeviceForm):
    """The form with which a browser subscribes: a script fills in what the browser says of itself."""

    endpoint = forms.CharField(max_length=MAX_ENDPOINT_LENGTH, widget=forms.HiddenInput)
    key = forms.CharField(max_length=100, widget=forms.HiddenInput)
    auth = forms.CharField(max_length=100, widget=forms.HiddenInput)
    signed_with = forms.CharField(max_length=100, widget=forms.HiddenInput)

    def __init__(self, user: User, data: Any = None):
        super().__init__(user, data, auto_id="device-%s", initial={"kinds": ACTION_KINDS})

    def clean(self) -> dict[str, Any]:
        """Say what is missing if a browser has not said all of itself."""
        if any(self.has_error(field.name) for field in self.hidden_fields()):
            self.add_error(None, "This browser has not subscribed to its push service.")
        return self.cleaned_data

    def subscription(self) -> Subscription:
        """Return what the browser says of itself."""
        values = self.cleaned_data
        return Subscription(values["endpoint"], values["key"], values["auth"], values["signed_with"])


class ReplacedSubscriptionForm(forms.Form):
    """What a browser sends once its push service has given it another subscription."""

    former = forms.CharField(max_length=MAX_ENDPOINT_LENGTH, required=False)
    endpoint = forms.CharField(max_length=MAX_ENDPOINT_LENGTH)
    key = forms.CharField(max_length=100)
    auth = forms.CharField(max_length=100)
    signed_with = forms.CharField(max_length=100)

    def subscription(self) -> Subscription:
        """Return the new subscription."""
        values = self.cleaned_data
        return Subscription(values["endpoint"], values["key"], values["auth"], values["signed_with"])


class WebhookForm(_KindsForm):
    """The form for a new webhook."""

    url = forms.URLField(
        max_length=500, label="Address", assume_scheme="https", help_text="An https:// address on the public internet."
    )
    owner = forms.ChoiceField(label="Events")
    kinds = _kinds_field()

    def __init__(self, user: User, data: Any = None):
        super().__init__(user, data, auto_id="webhook-%s")
        managed = managed_teams(user)
        if user.is_staff:
            managed = Group.objects.all()
        self.teams = {str(team.pk): team for team in managed}
        teams = [(key, f"Team {team.name}") for key, team in self.teams.items()]
        self.fields["owner"].choices = [("", "My inbox items"), *teams]  # type: ignore[attr-defined]
        self.fields["owner"].required = False

    def team(self) -> Group | None:
        """Return the team of the new webhook; None if it is the user's own."""
        return self.teams.get(self.cleaned_data["owner"])
