"""Edits of one setting leave every other line of a workflow text unchanged."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pytest

from sessions_app.workflows.language.reader import read_text
from sessions_app.workflows.loader.editing import (
    EditNotPossible,
    apply_settings,
    find_node_paths,
    node_data,
    set_session_kept,
)
from tests.workflows.test_loading import EXAMPLES

TEXT = """\
# What it is for.
version: 3
metadata: { name: An example }
nodes:
  - id: coder   # writes
    type: agent
    data:
      label: Coder   # its name
      prompt: |
        Do this.

        And that.

      # how long
      timeout: 60
  - id: check
    type: shell
    data: { label: Check, script: "true" }
  - id: end
    type: shell
edges: []
"""


def changed_lines(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


@pytest.mark.parametrize(
    ("node", "changes", "lines"),
    [
        ("coder", {"label": "Writer"}, ["-      label: Coder   # its name", "+      label: Writer   # its name"]),
        ("coder", {"timeout": 5}, ["-      timeout: 60", "+      timeout: 5"]),
        ("coder", {"timeout": None}, ["-      timeout: 60"]),
        ("coder", {"model": "small: 1"}, ['+      model: "small: 1"']),
        ("coder", {"model": "true"}, ['+      model: "true"']),
        ("coder", {"resumable": True}, ["+      resumable: true"]),
        ("coder", {"runner": None}, []),
        (
            "coder",
            {"prompt": 'Say "yes"\n\nor no\n'},
            ["-        Do this.", '+        Say "yes"', "-        And that.", "+        or no"],
        ),
        (
            "check",
            {"script": "false", "timeout": 1},
            [
                '-    data: { label: Check, script: "true" }',
                '+    data: { label: Check, script: "false", timeout: 1 }',
            ],
        ),
        ("check", {"label": None}, ['-    data: { label: Check, script: "true" }', '+    data: { script: "true" }']),
        ("end", {"script": "true"}, ['+    data: {"script": "true"}']),
    ],
)
def test_setting_changes_only_its_own_lines(node: str, changes: dict[str, Any], lines: list[str]) -> None:
    made = apply_settings(TEXT, node, changes)
    assert changed_lines(TEXT, made) == lines
    data = node_data(made, node)
    assert {key: data.get(key) for key in changes} == changes


VALUES: list[Any] = [
    *("plain", "", " led by a blank", "two\nlines", "ends so\n", "ends twice\n\n", "a\tb\nc", "- item", "# no comment"),
    *("{{ inputs.work }}", 'it\'s "both" \\ of them', "null", "1.5", "ümlaut: ✓", "@", 'printf "%s" "$X"', "  x\n y"),
    *(7, 1.5, True, False, [], [{"name": "x", "type": "string"}], {"a": {"b": [1]}}),
]


@pytest.mark.parametrize("text", [TEXT, json.dumps(read_text(TEXT, "x").data, indent=2), f"\ufeff{TEXT}"])
@pytest.mark.parametrize("node", ["coder", "check", "end"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_any_value_can_be_added_changed_and_removed(text: str, node: str, value: Any) -> None:
    added = apply_settings(text, node, {"another": value})
    assert node_data(added, node)["another"] == value
    over = apply_settings(added, node, {"another": "something else", "label": value})
    assert (node_data(over, node)["another"], node_data(over, node)["label"]) == ("something else", value)
    if node != "end":
        left = apply_settings(added, node, {"another": None})
        assert read_text(left, "x").data == read_text(text, "x").data


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_node_of_the_examples_can_be_changed(path: Path) -> None:
    text = path.read_text()
    for node in find_node_paths(text):
        made = apply_settings(text, node, {"label": "New: label", "timeout": 9})
        assert node_data(made, node)["label"] == "New: label"
        assert len(changed_lines(text, made)) <= 4
        assert apply_settings(text, node, {"label": node_data(text, node).get("label")}) == text


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("      label:", "      inputs: [{ name: work }]\n      label:")])
def test_agent_can_keep_its_session_or_start_anew(text: str) -> None:
    kept = set_session_kept(text, "coder", kept=True)
    data = node_data(kept, "coder")
    names = [port["name"] for port in data["inputs"]]
    assert data["resumable"] is True
    assert names == (["work"] if "work" in text else []) + ["taskPrompt", "iteratePrompt"] + (
        [] if "work" in text else ["prompt", "sessionId"]
    )
    assert set_session_kept(kept, "coder", kept=True) == kept
    anew = node_data(set_session_kept(kept, "coder", kept=False), "coder")
    assert "resumable" not in anew
    assert {port["name"] for port in anew["inputs"]} == set(names) - {"taskPrompt", "iteratePrompt"}


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (TEXT, "nobody"),
        ("{", "coder"),
        ("nodes: [{id: a, data: &one {label: x}}, {id: b, data: *one}]", "b"),
        ("just words", "coder"),
    ],
)
def test_impossible_edit_is_refused(text: str, node: str) -> None:
    with pytest.raises(EditNotPossible):
        apply_settings(text, node, {"label": "y"})


def test_nodes_of_components_are_found_too() -> None:
    text = "components: {part: {nodes: [{id: inner, data: {label: x}}]}}\nnodes: [{id: outer}]\n"
    assert find_node_paths(text) == {"outer": ("nodes", 0), "inner": ("components", "part", "nodes", 0)}
    assert node_data(apply_settings(text, "inner", {"label": "y"}), "inner") == {"label": "y", "type": ""}
