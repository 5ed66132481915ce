"""The cost of loading a workflow grows linearly with its text; function calls are counted, not time."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.workflows.language import limits
from sessions_app.workflows.language.files import InMemoryFiles
from sessions_app.workflows.language.values import TooLong, render_template
from sessions_app.workflows.loader import loading
from sessions_app.workflows.loader.drawing import draw_inline_svg
from sessions_app.workflows.loader.editing import find_node_paths
from sessions_app.workflows.nodes import NodeContext, NodeFailed, type_of
from tests.workflows.hostile_texts import BUDGETED, SHAPES, Shape, line, one, ports, shells, text
from tests.workflows.workflow_builder import node

SMALL, TIMES = 150, 4
MAX_GROWTH = 1.5 * TIMES
"""The highest permitted factor by which the cost may grow with a text TIMES as long."""


def steps_of(work: Callable[[], object]) -> int:
    """Count the function calls and generator resumptions of ``work``."""
    count = 0

    def step(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture
def larger_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits that refuse long texts early, and so cheaply."""
    for name in ("MAX_NODES", "MAX_EDGES"):
        monkeypatch.setattr(loading, name, 10**6)
    for name in ("MAX_PORTS", "MAX_WIRES", "MAX_STEPS"):
        monkeypatch.setattr(limits, name, 10**9)


def codes(loaded: loading.LoadResult) -> set[str]:
    """Return the codes of the errors."""
    return {problem.code for problem in loaded.problems if problem.severity == "error"}


def look_at(written: str) -> None:
    found = loading.load_workflow(written)
    if found.workflow is not None:
        draw_inline_svg(found.workflow, {})
    find_node_paths(written)


@pytest.mark.usefixtures("larger_limits")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cost_grows_with_the_length_of_the_text(shape: Shape) -> None:
    small, large = shape(SMALL), shape(SMALL * TIMES)
    look_at(small)  # imports and values built once are not part of the cost

    assert steps_of(lambda: look_at(large)) <= MAX_GROWTH * steps_of(lambda: look_at(small))


@pytest.mark.parametrize("shape", BUDGETED.values(), ids=BUDGETED)
def test_searches_have_a_step_limit(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "too_many" not in codes(loading.load_workflow(shape(SMALL)))

    monkeypatch.setattr(limits, "MAX_STEPS", 10 * SMALL)

    assert codes(loading.load_workflow(shape(SMALL))) == {"too_many"}


@pytest.mark.parametrize("limit", ["MAX_PORTS", "MAX_WIRES"])
def test_ports_and_connections_count_at_each_use(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"interface": {"inputs": ports(10)}, **json.loads(text(shells(4), [line(0, 1), line(1, 2), line(2, 3)]))}
    uses = [node(f"n{at}", "component", componentRef="part") for at in range(10)]
    written = text(uses, components={"part": part})
    assert "too_many" not in codes(loading.load_workflow(written))

    monkeypatch.setattr(limits, limit, 25)
    monkeypatch.setattr(loading, "MAX_WIRES", 25)

    assert "too_many" in codes(loading.load_workflow(written))


def test_aliases_of_long_texts_count_at_each_use() -> None:
    long = "a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 50 + "]"
    assert codes(loading.load_workflow(long)) == {"too_large"}


def test_file_is_read_once_for_all_spellings_of_its_path() -> None:
    class Counting(InMemoryFiles):
        read_files = 0

        def read(self, path: str) -> str:
            Counting.read_files += 1
            return super().read(path)

    paths = ("part.yaml", "./part.yaml", ".//part.yaml")
    uses = [node(f"n{at}", "component", workflowPath=path) for at, path in enumerate(paths)]
    loaded = loading.load_workflow(text(uses), files=Counting({"part.yaml": text(shells(1))}))

    assert (loaded.workflow is not None, Counting.read_files) == (True, 1)


def test_quotes_in_diagnostics_are_bounded() -> None:
    loaded = loading.load_workflow(text([{"id": f"n{at}", "type": "x" * 700} for at in range(900)]))

    assert len(loaded.problems) == limits.MAX_PROBLEMS + 1
    assert "more than" in loaded.problems[0].message or "more than" in loaded.problems[-1].message
    assert max(len(problem.message) for problem in loaded.problems) <= 501


def test_odd_answer_schemas_break_nothing() -> None:
    deep = loading.load_workflow(one("agent", prompt="x", outputSchema="[" * 100_000))
    odd = loading.load_workflow(one("agent", prompt="x", outputSchema={"properties": {"": {}, "y" * 300: {}}}))

    assert codes(deep) == {"schema"}
    assert codes(odd) == set()


@pytest.mark.parametrize(("kind", "setting", "times"), [("agent", "prompt", 60_000), ("workdir", "path", 250)])
def test_filled_templates_take_bounded_memory(kind: str, setting: str, times: int) -> None:
    reader = node("b", kind, **{setting: "{{ a.output }}" * times})
    edges = [{"source": "a", "target": "b"}]
    found = loading.load_workflow(text([node("a", "shell", script="true"), reader], edges)).checked.root.nodes["b"]
    inputs = dict.fromkeys(found.references.values(), "x" * limits.MAX_OUTPUT)
    begin = type_of(found).begin
    assert inputs and begin

    tracemalloc.start()
    try:
        beginning = begin(NodeContext(node=found, inputs=inputs))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(beginning, NodeFailed)
    assert f"{limits.MAX_FILLED} characters" in beginning.message
    assert peak < 8 * limits.MAX_FILLED


def test_text_of_maximum_size_is_rendered() -> None:
    value = "x" * (limits.MAX_FILLED // 2)
    assert render_template("{{ a.output }}{{ a.output }}", lambda name, port: value) == value * 2
    with pytest.raises(TooLong):
        render_template("{{ a.output }}{{ a.output }}.", lambda name, port: value)
