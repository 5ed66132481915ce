"""Resuming an ended run: which nodes are repeated, which results are kept, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.engine.resume import NothingToResume, records_to_resume
from sessions_app.workflows.engine.transitions import advance_run, cancel_records
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.loader.loading import load_workflow
from tests.workflows.memory_runs import drive, manual_trigger
from tests.workflows.workflow_builder import node, workflow

CHAIN = workflow([node(name, "shell", script=name) for name in ("a", "b", "c", "d")], ["a > b", "b > c", "a > d"])
SLOTS = [{"name": "number", "type": "iteration"}, {"name": "on", "type": "continue"}]
LOOP = workflow(
    [
        node("before", "shell", script="before"),
        node("loop", "loop", maxIterations=4, dockSlots=SLOTS),
        node("work", "shell", "loop", script="work"),
        node("check", "shell", "loop", script="check"),
        node("yes", "constant", "loop", value=True, valueType="boolean"),
        node("after", "shell", script="after"),
    ],
    ["before > loop.x", "work > check", "yes.value > loop@dock:on:input", "loop.y > after"],
)
GATED = workflow(
    [
        node("coder", "shell", script="coder"),
        node("gate", "gate", retryTarget="coder", maxRetries=1, inputs=["ok:boolean"]),
        node("end", "shell", script="end"),
    ],
    ["coder.ok > gate.ok", "gate.passed > end"],
)


def run_until(
    graph: WorkflowGraph, bad: str, records: Mapping[str, NodeRecord] | None = None
) -> tuple[dict[str, NodeRecord], list[str]]:
    """Let all shells but the one at ``bad`` succeed; return the records and the requested paths in order."""
    kept, begun = dict(records or {}), []
    while True:
        step = advance_run(graph, manual_trigger(), kept)
        kept |= {one.path: one for one in step.written}
        begun += [one.path for one in step.begun]
        if step.outcome:
            return kept, begun
        for one in [one for one in kept.values() if one.is_at_work]:
            kept[one.path] = _ended(one, good=one.path != bad)


def _ended(one: NodeRecord, *, good: bool) -> NodeRecord:
    return replace(
        one, state=NodeState.SUCCEEDED if good else NodeState.FAILED, outputs={"output": "", "ok": good}, error="no"
    )


def graph_of(text: str) -> WorkflowGraph:
    return load_workflow(text).checked


@pytest.mark.parametrize(
    ("text", "bad", "path", "again"),
    [
        (CHAIN, "b", "", ["b", "c"]),
        (CHAIN, "a", "", ["a", "b", "d", "c"]),
        (CHAIN, "", "b", ["b", "c"]),
        (CHAIN, "", "d", ["d"]),
        (LOOP, "loop[3]/work", "", ["loop[3]/work", "loop[3]/check", "loop[4]/work", "loop[4]/check", "after"]),
        (LOOP, "loop[3]/check", "", ["loop[3]/check", "loop[4]/work", "loop[4]/check", "after"]),
        (LOOP, "", "loop[4]/check", ["loop[4]/check", "after"]),
        (LOOP, "", "after", ["after"]),
        (LOOP, "after", "", ["after"]),
    ],
)
def test_resume_repeats_only_dependent_nodes(text: str, bad: str, path: str, again: list[str]) -> None:
    graph = graph_of(text)
    records, _ = run_until(graph, bad)
    kept = records_to_resume(graph, records, path)
    finished, begun = run_until(graph, "", kept)
    assert begun == again
    assert all(one.state == NodeState.SUCCEEDED for one in finished.values())


def test_cancelled_run_resumes_where_it_was() -> None:
    graph = graph_of(LOOP)
    records: dict[str, NodeRecord] = {}
    for _ in range(4):
        records |= {one.path: one for one in advance_run(graph, manual_trigger(), records).written}
        at_work = [one for one in records.values() if one.is_at_work]
        if at_work[0].path == "loop[1]/check":
            break
        records |= {one.path: _ended(one, good=True) for one in at_work}
    records |= {one.path: one for one in cancel_records(records)}
    kept = records_to_resume(graph, records)
    finished, begun = run_until(graph, "", kept)
    assert begun[:2] == ["loop[1]/check", "loop[2]/work"]
    assert all(one.state == NodeState.SUCCEEDED for one in finished.values())


def test_resume_at_failed_gate_repeats_its_target() -> None:
    graph = graph_of(GATED)
    kept: dict[str, NodeRecord] = {}
    for _ in range(10):
        step = advance_run(graph, manual_trigger(), kept)
        kept |= {one.path: one for one in step.written}
        if step.outcome:
            break
        kept |= {one.path: _succeeded_not_ok(one) for one in kept.values() if one.is_at_work}
    assert kept["gate#2"].state == NodeState.FAILED
    again = records_to_resume(graph, kept)
    assert "coder" in again
    finished, begun = run_until(graph, "", again)
    assert begun == ["coder#2", "end"]
    assert finished["gate#2"].state == NodeState.SUCCEEDED


def _succeeded_not_ok(one: NodeRecord) -> NodeRecord:
    return replace(one, state=NodeState.SUCCEEDED, outputs={"output": "", "ok": False})


@pytest.mark.parametrize(("bad", "path"), [("", ""), ("", "nobody"), ("", "loop[1]")])
def test_resume_without_failed_nodes_is_refused(bad: str, path: str) -> None:
    graph = graph_of(LOOP)
    records, _ = run_until(graph, bad)
    with pytest.raises(NothingToResume):
        records_to_resume(graph, records, path)


def test_resumed_run_has_outputs_of_one_that_never_failed(tmp_path: Path) -> None:
    text = workflow([node("a", "shell", script="test -e ok && echo yes"), node("b", "wire")], ["a > b.value"])
    graph = graph_of(text)
    run = drive(graph, cwd=tmp_path)
    assert not run.outcome.succeeded
    (tmp_path / "ok").touch()
    kept: Any = records_to_resume(graph, run.records)
    assert "a" not in kept
    assert drive(graph, cwd=tmp_path).outcome.outputs == {"value": "yes"}
