"""Templates that others include within a sentence."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.pages.test_plain_text import TEMPLATES
from tests.services import ROOT

BEFORE_PUNCTUATION: Final = re.compile(r'include "([^"]+)"[^%]*%\}[.,:;)]')
IN_SENTENCES: Final = sorted({name for path in TEMPLATES for name in BEFORE_PUNCTUATION.findall(path.read_text())})


@pytest.mark.parametrize("name", IN_SENTENCES)
def test_template_before_punctuation_ends_without_a_space(name: str) -> None:
    text = (ROOT / "templates" / name).read_text()
    assert text == text.rstrip()


def test_times_stand_before_punctuation() -> None:
    assert "parts/time.html" in IN_SENTENCES
