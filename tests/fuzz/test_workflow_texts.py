"""Any text of a workflow is either loaded or reported with its problems."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
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
LONGEST = 120.0
"""Seconds, on any machine."""


def check_loads_or_reports(text: str | bytes) -> None:
    begun = time.monotonic()
    loaded = load_workflow(text)
    assert (loaded.workflow is None) == any(one.severity == "error" for one in loaded.problems)
    assert time.monotonic() - begun < LONGEST


@BOUNDED
@given(text=st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_loaded_or_reported(text: str | bytes) -> None:
    check_loads_or_reports(text)


@BOUNDED
@given(data=value(*WORDS))
def test_any_json_is_loaded_or_reported(data: Any) -> None:
    check_loads_or_reports(json.dumps(data))


def test_examples_exist() -> None:
    assert EXAMPLES


def children_of(data: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of an object, or the positions and values of a list."""
    if isinstance(data, dict):
        return data.items()
    if isinstance(data, list):
        return enumerate(data)
    return ()


def paths_of(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within ``data``."""
    paths = [path]
    for key, child in children_of(data):
        paths += paths_of(child, (*path, key))
    return paths


def replace_at(data: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return ``data`` with the value at ``path`` replaced by ``other``."""
    if not path:
        return other
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = replace_at(data[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_with_any_value_replaced_is_loaded_or_reported(path: Any) -> None:
    good = yaml.safe_load(path.read_text())
    there = paths_of(good)

    @FEW
    @given(place=st.sampled_from(there), other=value(*WORDS))
    def damage(place: tuple[Any, ...], other: Any) -> None:
        check_loads_or_reports(json.dumps(replace_at(good, place, other)))

    damage()
