"""Normalizing text of strangers."""

from __future__ import annotations

import unicodedata

import pytest

from executors_app.wire.normalization import normalize_compatible
from executors_app.wire.replayed_texts import shows_text
from tests.growth import measure_growth

ALTERNATING = "a" + "\u0301\u0323" * 500_000


@pytest.mark.parametrize("text", ["", "Fix it", "ﬁx Ⅳ", "e\u0301\u0323", "Z" + "\u0300\u0316" * 15, "각", "مرحبا"])
def test_ordinary_text_gets_its_usual_form(text: str) -> None:
    assert normalize_compatible(text) == unicodedata.normalize("NFKC", text)


def test_equal_texts_stay_equal() -> None:
    assert normalize_compatible("ﬁ" + ALTERNATING[:200]) == normalize_compatible("fi" + ALTERNATING[:200])


def test_cost_of_normalizing_is_linear() -> None:
    sizes = (60_000, 120_000, 240_000, 480_000, 960_000)
    measure_growth(normalize_compatible, lambda size: ALTERNATING[:size], sizes=sizes, pools=()).assert_bounded()


def test_hostile_replay_is_compared_in_linear_time() -> None:
    sizes = (60_000, 120_000, 240_000, 480_000, 960_000)
    growth = measure_growth(
        lambda text: shows_text(text, "Fix the tests"), lambda size: ALTERNATING[:size], sizes=sizes, pools=()
    )
    growth.assert_bounded()
