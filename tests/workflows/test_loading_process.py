"""The loading process: it returns what loading in this process returns, and limits the cost of a text."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sessions_app.workflows.language.files import DirectoryFiles, InMemoryFiles, project_root_of
from sessions_app.workflows.loader import client, editing, graph_json, loading
from tests.services import ROOT
from tests.workflows.hostile_texts import SHAPES, one, shells, text
from tests.workflows.workflow_builder import node

EXAMPLES = sorted((ROOT / "docs" / "examples" / "workflows").rglob("*.y*ml"))
SLOW = '{"a": [' + "1," * 190_000 + "1]}"
"""A text that takes about a second to load, within all size limits."""
SLOW_FILES = {f"{at}.yaml": SLOW for at in range(10)}
EXPENSIVE = text([node(f"n{at}", "component", workflowPath=path) for at, path in enumerate(SLOW_FILES)])
"""A text that takes several seconds to load with ``SLOW_FILES``, even on a fast machine."""


def codes(problems: object) -> list[str]:
    assert isinstance(problems, tuple)
    return [one.code for one in problems]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_loading_process_returns_the_same_graph(path: Path) -> None:
    assert client.load_isolated(path.read_bytes(), "x", DirectoryFiles(project_root_of(path))) == loading.load_workflow(
        path.read_bytes(), "x", DirectoryFiles(project_root_of(path))
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_graph_survives_json_round_trip(shape: object) -> None:
    assert callable(shape)
    workflow = loading.load_workflow(shape(20)).workflow
    if workflow is not None:
        document = json.loads(json.dumps(graph_json.graph_to_json(workflow)))
        assert graph_json.graph_from_json(document) == workflow


def test_component_used_twice_stays_one_scope() -> None:
    part = {"interface": {}, **json.loads(text(shells(1)))}
    uses = [node(name, "component", componentRef="part") for name in ("a", "b")]
    workflow = client.load_isolated(text(uses, components={"part": part})).checked
    assert workflow.root.nodes["a"].body is workflow.root.nodes["b"].body


def test_files_are_requested_from_the_provider() -> None:
    uses = text([node(f"n{at}", "component", workflowPath=f"{at}.yaml") for at in range(2)])
    loaded = client.load_isolated(uses, "x", InMemoryFiles({"0.yaml": text(shells(1))}))
    assert codes(loaded.problems) == ["component"]
    assert "1.yaml" in loaded.problems[0].message


def test_text_exceeding_cpu_time_is_too_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client.LIMITS, "cpu_seconds", 1)
    assert codes(client.load_isolated(EXPENSIVE, files=InMemoryFiles(SLOW_FILES)).problems) == ["too_expensive"]
    assert codes(client.check_isolated(EXPENSIVE, files=InMemoryFiles(SLOW_FILES)).problems) == ["too_expensive"]
    assert client.load_isolated(text(shells(1))).workflow is not None


def test_text_exceeding_memory_is_too_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client.LIMITS, "memory", 1 << 20)
    assert codes(client.load_isolated(SLOW).problems) == ["too_expensive"]


def test_busy_machine_is_not_blamed_on_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(client.LIMITS, "seconds", 0.05)
    with pytest.raises(client.LoadingUnavailable):
        client.load_isolated(SLOW)


def test_killed_loading_process_is_replaced() -> None:
    client.load_isolated(text(shells(1)))
    begun = client.POOL._process
    assert begun is not None
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    assert client.load_isolated(text(shells(1))).workflow is not None


def test_texts_load_concurrently() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda count: client.load_isolated(text(shells(count))).checked.root.count, range(1, 17)))
    assert found == list(range(1, 17))


def test_loading_process_ends_when_closed() -> None:
    client.load_isolated(text(shells(1)))
    begun = client.POOL._process
    assert begun is not None
    client.POOL.close()
    assert begun.returncode == 0


def test_loading_process_edits_like_the_editor() -> None:
    written = one("shell", script="true")
    assert client.apply_changes_isolated(written, "a", {"script": "false"}) == editing.apply_settings(
        written, "a", {"script": "false"}
    )
    assert client.node_data_isolated(written, "a") == {"script": "true", "type": "shell"}
    with pytest.raises(editing.EditNotPossible, match="no step"):
        client.node_data_isolated(written, "b")
