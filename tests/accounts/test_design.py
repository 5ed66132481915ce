"""The tokens of the design system: enough contrast in both themes, and no other colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client

from sessions_app.pages.views.design import COLOURS, TONES, find_colour, read_design_tokens

STYLES = Path(__file__).resolve().parents[2] / "frontend" / "static" / "kandev"
THEMES = ("light", "dark")
MEASURED = {"composer"}
"""Variables that scripts set: the height of the composer, which covers the end of the conversation."""
SURFACES = ("back", "sunken", "surface", "raised")
WORDS = 4.5
EDGES = 3.0

PAIRS = [
    *((word, surface, WORDS) for word in ("text", "faint", "accent", "accent-hover") for surface in SURFACES),
    *((tone, f"{tone}-back", WORDS) for tone, _ in TONES),
    *(
        (f"code-{part}", back, WORDS)
        for part in ("keyword", "string", "number", "name", "comment")
        for back in ("surface", "good-back", "bad-back", "good-mark", "bad-mark")
    ),
    *(("text", f"{tone}-{part}", WORDS) for tone in ("good", "bad") for part in ("back", "mark")),
    *(("faint", f"{tone}-back", WORDS) for tone in ("good", "bad")),
    ("accent-text", "accent", WORDS),
    ("accent-text", "accent-hover", WORDS),
    ("accent", "accent-back", WORDS),
    ("danger", "surface", WORDS),
    ("danger-text", "danger", WORDS),
    ("bad", "surface", WORDS),
    ("text", "accent-back", WORDS),
    *(("edge", surface, EDGES) for surface in ("back", "surface")),
    *(("focus", surface, EDGES) for surface in SURFACES),
]


def luminance(value: str) -> float:
    parts = (int(value[index : index + 2], 16) / 255 for index in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_borders_have_enough_contrast(theme: str) -> None:
    low = {
        (front, back): round(found, 2)
        for front, back, least in PAIRS
        if (found := contrast(getattr(find_colour(front), theme), getattr(find_colour(back), theme))) < least
    }
    assert low == {}


def test_colours_are_defined_only_in_the_tokens() -> None:
    named = {
        path.name: found
        for path in sorted(STYLES.glob("*.css"))
        if path.name != "tokens.css"
        and (found := re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)|\brgba?\(", path.read_text()))
    }
    assert named == {}


def test_every_style_variable_is_a_token() -> None:
    used = {
        (path.name, name)
        for path in sorted(STYLES.glob("*.css"))
        for name in re.findall(r"var\(--([\w-]+)", path.read_text())
    }
    assert {pair for pair in used if pair[1] not in {*read_design_tokens(), *MEASURED}} == set()


def test_design_page_shows_every_token_and_component(ada: Client) -> None:
    text = ada.get("/design/").text
    assert [name for name in COLOURS if f"swatch-{name}" not in text] == []
    styles = (STYLES / "swatches.css").read_text()
    assert [name for name in COLOURS if f".swatch-{name} {{" not in styles] == []
    parts = {path.name for path in (STYLES.parents[2] / "templates" / "parts").glob("*.html")} - {
        "nav.html",
        "account.html",
        "form_fields.html",
        "theme_switch.html",
        "time.html",
        "card.html",
        "dialog.html",
        "secret.html",
    }
    assert [name for name in sorted(parts) if f"parts/{name}" not in text] == []
