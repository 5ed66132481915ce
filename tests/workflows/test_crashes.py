"""A run that is killed at any moment has the same result, and none of its work is done twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from sessions_app.workflows.engine.records import NodeRecord
from sessions_app.workflows.engine.resume import records_to_resume
from sessions_app.workflows.engine.transitions import RunOutcome, advance_run, complete_record
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.loader.loading import load_workflow
from tests.workflows.deployed_runs import DeployedWorkflows
from tests.workflows.kill_drill import drill
from tests.workflows.memory_runs import manual_trigger, reload_from_json
from tests.workflows.workflow_builder import node, workflow

DOCKS = [
    {"name": "i", "type": "iteration"},
    {"name": "go", "type": "continue"},
    {"name": "session", "type": "feedback"},
]


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """Draw acyclic graphs of agents, some of them in a loop of three iterations; some may fail."""
    names = [f"n{index}" for index in range(draw(st.integers(1, 6)))]
    nodes: list[dict[str, Any]] = []
    edges: list[str] = []
    with_loop = draw(st.booleans())
    for index, name in enumerate(names):
        parent = "loop" if with_loop and draw(st.booleans()) else ""
        tolerant = draw(st.booleans())
        nodes.append(
            node(name, "agent", parent, prompt=f"{name} {{{{ inputs.x }}}}", inputs=["x"], continueOnFailure=tolerant)
        )
        before = [one["id"] for one in nodes[:-1] if one.get("parentId", "") == parent]
        if draw(st.booleans()) and before:
            edges.append(f"{draw(st.sampled_from(before))}.output > {name}.x")
        if parent and index % 2:
            edges += [f"loop@dock:session:prev > {name}.sessionId"]
    if with_loop:
        nodes += [
            node("loop", "loop", maxIterations=5, dockSlots=DOCKS),
            node("more", "agent", "loop", prompt="{{ inputs.i }}", inputs=["i"]),
        ]
        edges += [
            "loop@dock:i:output > more.i",
            "more.output > loop@dock:go:input",
            "more.sessionId > loop@dock:session:current",
        ]
    return workflow(nodes, edges)


def answer(request: dict[str, Any], path: str, failing: frozenset[str]) -> dict[str, Any]:
    """Return the result of one piece of work, the same at every request."""
    session = request["sessionId"] or f"session of {path}"
    if path.rpartition("/")[2] in failing:
        return {"text": "", "sessionId": session, "error": "failed on purpose"}
    prompt = request["prompt"]
    text = prompt.upper()
    if prompt.isdigit():
        text = "true" if int(prompt) < 3 else "false"
    return {"text": text, "sessionId": session}


def run_to_its_end(
    loaded: WorkflowGraph, failing: frozenset[str], choose: Any = None, records: dict[str, NodeRecord] | None = None
) -> tuple[RunOutcome, dict[str, NodeRecord], list[str]]:
    """Run to the end; ``choose(n)`` draws which of n pieces of work ends next, and whether a step is lost."""
    records = records or {}
    ended: list[str] = []
    while True:
        if choose and choose(2):
            advance_run(loaded, manual_trigger(), records)  # decided, and killed before it was stored
        step = advance_run(loaded, manual_trigger(), records)
        records = reload_from_json(records | {record.path: record for record in step.written})
        if step.outcome:
            return step.outcome, records, ended
        under_way = [record for record in records.values() if record.is_at_work]
        assert under_way or step.is_full
        if under_way:
            record = under_way[choose(len(under_way)) if choose else 0]
            ended.append(record.path)
            result = answer(dict(record.request), record.path, failing)
            records[record.path] = complete_record(loaded, record, result, lambda requests: [])


@settings(max_examples=60, deadline=None)
@for_all(st.data())
def test_run_killed_anywhere_has_the_same_result(data: st.DataObject) -> None:
    loaded = load_workflow(data.draw(graphs())).checked
    failing = data.draw(st.sampled_from([frozenset[str](), frozenset({"n1"}), frozenset({"n1", "n3"})]))
    outcome, _, _ = run_to_its_end(loaded, frozenset())

    other, records, ended = run_to_its_end(loaded, failing, lambda many: data.draw(st.integers(0, many - 1)))

    assert len(ended) == len(set(ended)), "some work was done twice"
    assert all(record.is_finished for record in records.values())
    if not failing:
        assert other == outcome


@settings(max_examples=40, deadline=None)
@for_all(st.data())
def test_run_resumed_at_any_node_has_the_same_result(data: st.DataObject) -> None:
    loaded = load_workflow(data.draw(graphs())).checked
    outcome, records, _ = run_to_its_end(loaded, frozenset())
    path = data.draw(st.sampled_from(sorted(path for path, one in records.items() if one.kind != "iteration")))

    left = records_to_resume(loaded, records, path)
    other, all_records, ended = run_to_its_end(loaded, frozenset(), records=left)

    assert path not in left
    assert (other, all_records) == (outcome, records)
    assert set(ended) == {name for name in records.keys() - left.keys() if records[name].request}


@settings(max_examples=30, deadline=None)
@for_all(st.data())
def test_finished_run_requests_no_work(data: st.DataObject) -> None:
    loaded = load_workflow(data.draw(graphs())).checked
    outcome, records, _ = run_to_its_end(loaded, frozenset())
    again = advance_run(loaded, manual_trigger(), records)
    assert (again.outcome, again.written) == (outcome, ())


SEEDS = (11,)
"""Seeds of the kill drill; ``make chaos`` uses twenty."""


@pytest.mark.parametrize("seed", SEEDS)
def test_run_killed_in_third_iteration_ends_correctly(deployed: DeployedWorkflows, seed: int) -> None:
    assert drill(deployed, seed) == []
