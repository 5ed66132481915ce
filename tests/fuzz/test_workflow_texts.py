"""Any text for a workflow: it is loaded, or what is wrong with it is said; nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.workflows.loader.loading import load_workflow
from tests.fuzz.values import BOUNDED, FEW, value
from tests.services import ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples" / "workflows").rglob("*.y*ml"))
WORDS = (
    *("version", "nodes", "edges", "id", "type", "agent", "loop", "shell", "gate", "config", "source", "target"),
    *("prompt", "input", "output", "session", "body", "handle", "function", "condition", "{{ input }}", "{{"),
)
LONGEST = 30.0
"""Seconds, on any machine."""


def is_judged(text: str | bytes) -> None:
    begun = time.monotonic()
    loaded = load_workflow(text)
    assert (loaded.workflow is None) == any(one.severity == "error" for one in loaded.problems)
    assert time.monotonic() - begun < LONGEST


@BOUNDED
@given(text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text(text: str | bytes) -> None:
    is_judged(text)


@BOUNDED
@given(data=value(*WORDS))
def test_any_json(data: Any) -> None:
    is_judged(json.dumps(data))


def test_there_are_examples() -> None:
    assert EXAMPLES


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place within ``data``."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


def with_another(data: Any, path: tuple[Any, ...], other: Any) -> Any:
    """``data`` with ``other`` in one place."""
    if not path:
        return other
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = with_another(data[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_with_anything_in_one_place(path: Any) -> None:
    good = yaml.safe_load(path.read_text())
    there = places(good)

    @FEW
    @given(place=st.sampled_from(there), other=value(*WORDS))
    def spoil(place: tuple[Any, ...], other: Any) -> None:
        is_judged(json.dumps(with_another(good, place, other)))

    spoil()
