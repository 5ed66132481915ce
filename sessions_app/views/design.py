"""The design system's own page: its tokens, and every component in every state, as the pages use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django import forms
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from sessions_app.templatetags.design import ICONS

TONES: Final = (
    ("calm", "Nothing to do"),
    ("busy", "At work"),
    ("ask", "Needs somebody"),
    ("good", "Went well"),
    ("bad", "Went wrong"),
    ("off", "Over, or not begun"),
)
COLOURS: Final = (
    *("back", "sunken", "surface", "raised", "line", "edge", "text", "faint", "accent", "accent-back", "danger"),
    *(f"{tone}{part}" for tone, _ in TONES for part in ("", "-back")),
)
TYPE: Final = ("2xl", "xl", "l", "m", "s", "xs")
_TOKEN: Final = re.compile(r"^ *--([\w-]+): (.+);$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour's token with its value in both themes, as ``tokens.css`` has it."""

    name: str
    light: str
    dark: str


@cache
def tokens() -> dict[str, str]:
    """Every token by its name; the file is the only place where they are written."""
    found = finders.find("kandev/tokens.css")
    assert isinstance(found, str)  # noqa: S101 - it is ours
    return dict(_TOKEN.findall(Path(found).read_text(encoding="utf-8")))


def colour(name: str) -> Colour:
    """A colour's token; KeyError for none."""
    light, _, dark = tokens()[name].removeprefix("light-dark(").removesuffix(")").partition(", ")
    return Colour(name, light, dark)


class Specimen(forms.Form):
    """One field of each kind, in every state."""

    plain = forms.CharField(label="A text", help_text="What it is for, in a few words.")
    optional = forms.CharField(label="A text that may be empty", required=False)
    chosen = forms.ChoiceField(label="One of several", choices=[("a", "The first"), ("b", "The second")])
    few = forms.ChoiceField(
        label="One of few", choices=[("a", "This"), ("b", "That")], widget=forms.RadioSelect, initial="a"
    )
    closed = forms.CharField(label="A text that cannot be changed now", disabled=True, initial="As it is")
    switched = forms.BooleanField(label="Something that is on or off", required=False)
    wrong = forms.EmailField(label="A text that is wrong")
    long = forms.CharField(label="A long text", widget=forms.Textarea(attrs={"rows": 3}), required=False)


@require_safe
def design(request: HttpRequest) -> HttpResponse:
    """For everybody who is logged in: nothing of it is anybody's."""
    told = tokens()
    form = Specimen({"plain": "Mend the tests", "chosen": "b", "few": "a", "switched": "on", "wrong": "ada at example"})
    context = {
        "form": form,
        "colours": [colour(name) for name in COLOURS],
        "tones": TONES,
        "spaces": [(name, told[f"space-{name}"]) for name in range(1, 8)],
        "types": [(name, told[f"text-{name}"]) for name in TYPE],
        "radii": [(name, told[name]) for name in ("radius-s", "radius-m", "radius", "radius-full")],
        "icons": sorted(ICONS),
    }
    return render(request, "design.html", context)
