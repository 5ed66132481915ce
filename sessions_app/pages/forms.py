"""The example form of the page that shows the design system."""

from __future__ import annotations

from django import forms


class SpecimenForm(forms.Form):
    """Example form for the design page: a field of each kind and state."""

    plain = forms.CharField(label="A text", help_text="A short help text.")
    optional = forms.CharField(label="Optional text", required=False)
    chosen = forms.ChoiceField(label="Select", choices=[("a", "The first"), ("b", "The second")])
    few = forms.ChoiceField(
        label="Radio buttons", choices=[("a", "This"), ("b", "That")], widget=forms.RadioSelect, initial="a"
    )
    closed = forms.CharField(label="Disabled field", disabled=True, initial="Fixed value")
    switched = forms.BooleanField(label="Checkbox", required=False)
    wrong = forms.EmailField(label="Field with an error")
    long = forms.CharField(label="Text area", widget=forms.Textarea(attrs={"rows": 3}), required=False)
