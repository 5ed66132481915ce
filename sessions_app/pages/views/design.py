"""The reference page of the design system: its tokens, parts and icons."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.pages.forms import SpecimenForm
from sessions_app.templatetags.design import ICONS

TONES: Final = (
    ("calm", "No action needed"),
    ("busy", "Working"),
    ("ask", "Needs attention"),
    ("good", "Success"),
    ("bad", "Error"),
    ("off", "Ended, or not started"),
)
COLOURS: Final = (
    *("back", "sunken", "surface", "raised", "line", "edge", "text", "faint", "accent", "accent-back", "danger"),
    *(f"{tone}{part}" for tone, _ in TONES for part in ("", "-back")),
    *(f"code-{part}" for part in ("keyword", "string", "number", "name", "comment")),
    *("good-mark", "bad-mark"),
)
TYPOGRAPHY: Final = ("2xl", "xl", "l", "m", "s", "xs")
_TOKEN_PATTERN: Final = re.compile(r"^ *--([\w-]+): (.+);$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Colour:
    """A color token with its value in both themes, from ``tokens.css``."""

    name: str
    light: str
    dark: str


@cache
def read_design_tokens() -> dict[str, str]:
    """Return the design tokens by name, read from ``tokens.css``, which alone defines them."""
    found = finders.find("kandev/tokens.css")
    assert isinstance(found, str)  # noqa: S101 - it is ours
    return dict(_TOKEN_PATTERN.findall(Path(found).read_text(encoding="utf-8")))


def find_colour(name: str) -> Colour:
    """Return the color token with this name. Raises KeyError for an unknown one."""
    light, _, dark = read_design_tokens()[name].removeprefix("light-dark(").removesuffix(")").partition(", ")
    return Colour(name, light, dark)


@require_safe
def show_design_system(request: UserHttpRequest) -> HttpResponse:
    """Show the design system to any logged-in user; the page contains no user data."""
    tokens = read_design_tokens()
    form = SpecimenForm(
        {"plain": "Fix the tests", "chosen": "b", "few": "a", "switched": "on", "wrong": "ada at example"}
    )
    context = {
        "form": form,
        "colours": [find_colour(name) for name in COLOURS],
        "tones": TONES,
        "spaces": [(name, tokens[f"space-{name}"]) for name in range(1, 8)],
        "types": [(name, tokens[f"text-{name}"]) for name in TYPOGRAPHY],
        "radii": [(name, tokens[name]) for name in ("radius-s", "radius-m", "radius", "radius-full")],
        "icons": sorted(ICONS),
    }
    return render(request, "pages/design.html", context)
