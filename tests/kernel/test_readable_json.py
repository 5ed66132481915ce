"""Values of strangers as indented JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sessions_app.kernel.rules.readable_json import readable_json
from tests.growth import measure_growth


def nested(depth: int, value: Any = 1) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [1, "é", None, [], {}, {"a": [1, {"b": "c"}]}, nested(100)])
def test_short_value_is_indented(value: Any) -> None:
    assert readable_json(value, 100_000) == json.dumps(value, indent=2, ensure_ascii=False)


@pytest.mark.parametrize("value", [[nested(200)] * 10_000, ["x" * 50] * 100_000, {"a": nested(900)}])
def test_long_value_is_cut_behind_the_limit(value: Any) -> None:
    text = readable_json(value, 1_000)
    assert 1_000 < len(text) < 3_000


def test_cost_is_bounded_by_the_limit() -> None:
    growth = measure_growth(
        lambda count: readable_json([nested(300)] * count, 100_000),
        lambda count: count,
        sizes=(1_000, 2_000, 4_000, 8_000, 16_000),
        pools=(),
    )
    growth.assert_bounded()
