"""The form for a new wait."""

from __future__ import annotations

from django import forms


class WaitCreateForm(forms.Form):
    """The form for a new wait: what to wait for, and until when."""

    reason = forms.CharField(
        label="What to wait for",
        max_length=2000,
        widget=forms.TextInput(attrs={"placeholder": "The build of main", "autocomplete": "off"}),
    )
    kind = forms.ChoiceField(
        label="Kind",
        choices=(
            ("build", "A build or a deployment"),
            ("approval", "An approval"),
            ("tool", "The result of a tool"),
            ("other", "Other"),
        ),
    )
    expires = forms.TypedChoiceField(
        label="Until",
        coerce=int,
        empty_value=None,
        required=False,
        choices=(
            ("", "No deadline"),
            (3600, "In an hour"),
            (8 * 3600, "In 8 hours"),
            (86400, "In a day"),
            (7 * 86400, "In a week"),
            (30 * 86400, "In 30 days"),
        ),
    )
