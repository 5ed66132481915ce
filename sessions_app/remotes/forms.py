"""The forms of a repository's remote."""

from __future__ import annotations

from typing import Any

from django import forms

from executors_app.repositories.remote_address import MAX_ADDRESS
from executors_app.repositories.remote_keys import MAX_KEY
from sessions_app.remotes.services import MAX_TOKEN


class AddressForm(forms.Form):
    """The form for the address."""

    address = forms.CharField(
        max_length=MAX_ADDRESS,
        help_text="git@example.org:team/project.git with a deploy key, or https://example.org/team/project.git with a "
        "token. Another server needs a new key or token.",
    )


class TokenForm(forms.Form):
    """The form for a token, which is never shown again."""

    username = forms.CharField(
        max_length=200,
        required=False,
        label="User name",
        help_text="Most servers accept any. GitLab wants the name of the deploy token.",
    )
    token = forms.CharField(max_length=MAX_TOKEN, widget=forms.PasswordInput(attrs={"autocomplete": "off"}), strip=True)


class SecretTextarea(forms.Textarea):
    """A field whose value is not sent back, not even with its errors."""

    def format_value(self, value: Any) -> None:
        """Show nothing."""
        return


class KeyForm(forms.Form):
    """The form for a key that exists already, which is never shown again."""

    private_key = forms.CharField(
        max_length=MAX_KEY,
        widget=SecretTextarea(attrs={"rows": 4, "spellcheck": "false", "autocomplete": "off"}),
        label="Private key",
        help_text="In OpenSSH’s format, without a passphrase.",
    )
