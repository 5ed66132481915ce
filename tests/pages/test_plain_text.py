"""The filters of templates that show text of agents and members."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from django.template import Context, Template

from tests.growth import measure_growth
from tests.services import ROOT

SLOW_FILTERS: Final = re.compile(r"\|\s*(truncate\w+|urlize\w*|wordwrap|slugify|striptags|linebreaks)\b")
"""Filters of Django whose cost grows faster than the text, or that read all of a text to show its beginning."""
TEMPLATES: Final = [
    *(ROOT / "templates").rglob("*.html"),
    *(path for app in ("sessions_app", "executors_app") for path in (ROOT / app).rglob("templates/**/*.html")),
]
BEGINNING: Final = Template("{% load plain_text %}{{ text|beginning:10 }}")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_templates_use_no_filter_that_reads_a_whole_text(path: Path) -> None:
    assert not SLOW_FILTERS.findall(path.read_text())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("0123456789", "0123456789"),
        ("0123456789a", "012345678…"),
        ("<b>\u202e", "&lt;b&gt;⟦RLO⟧"),
        (12, "12"),
    ],
)
def test_beginning_is_short_visible_and_escaped(text: object, shown: str) -> None:
    assert BEGINNING.render(Context({"text": text})) == shown


def test_beginning_reads_nothing_behind_it() -> None:
    def show(text: str) -> None:
        for _ in range(100):
            BEGINNING.render(Context({"text": text}))

    sizes = (20_000, 40_000, 80_000, 160_000, 320_000)
    growth = measure_growth(show, lambda size: "a" + "\u0301\u0323" * (size // 2), sizes=sizes, pools=())
    growth.assert_bounded()
