"""Loops: values passed between iterations, how loops end, and edges across their borders."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.workflows.engine import transitions
from sessions_app.workflows.engine.records import NodeState
from sessions_app.workflows.engine.transitions import advance_run, cancel_records
from sessions_app.workflows.loader.loading import load_workflow
from tests.workflows.memory_runs import Agents, drive, manual_trigger
from tests.workflows.test_engine import found, output_of
from tests.workflows.workflow_builder import TRIGGER, body, node, workflow


def loop(most: int = 10, **more: Any) -> dict[str, Any]:
    slots = [("i", "iteration"), ("go", "continue"), ("count", "feedback")]
    docks = [{"name": name, "type": kind} for name, kind in slots]
    return node("loop", "loop", maxIterations=most, dockSlots=docks, **more)


COUNTER = node(
    "counter",
    "shell",
    "loop",
    script='PREV={{ inputs.prev }}\n[ -n "$PREV" ] || PREV=0\nN=$((PREV + 1))\n'
    'echo "n=$N of {{ inputs.i }}"\n[ "$N" -lt {{ inputs.target }} ] && echo go=true || echo go=false',
    inputs=["prev:number", "i:number", "target:number"],
    outputs=[found("n", "number", "n=(\\d+)"), found("go", "boolean", "go=(.*)")],
)
COUNTED = [
    *("five.value > loop.target", "loop@input:target:internal > counter.target", "loop@dock:i:output > counter.i"),
    *("loop@dock:count:prev > counter.prev", "counter.n > loop@dock:count:current", "counter.go > loop@dock:go:input"),
    "counter.n > loop@output:final:internal",
]


def test_loop_passes_values_on_and_keeps_output_types() -> None:
    five = node("five", "constant", value=5)
    after = node("after", "function", language="python", code="n + 1", inputs=["n:number"], outputs=["m:number"])
    run = drive(
        workflow(
            [five, loop(inputs=["target:number"], outputs=["final:number"]), COUNTER, after],
            [*COUNTED, "loop.final > after.n"],
        )
    )
    assert run.outcome.succeeded
    assert run["loop"].outputs == {"final": 5, "iterations": 5, "terminationReason": "condition"}
    assert [output_of(run, f"loop[{index}]/counter").split("\n")[0] for index in (1, 5)] == ["n=1 of 1", "n=5 of 5"]
    assert run["after"].outputs == {"m": 6}


@pytest.mark.parametrize(
    ("value", "negate", "iterations", "reason"),
    [
        (True, False, 3, "max_iterations"),
        (False, False, 1, "condition"),
        (True, True, 1, "condition"),
        (False, True, 3, "max_iterations"),
        ("true", False, 3, "max_iterations"),
        ("yes", False, 1, "condition"),
        (None, False, 1, "condition"),
        (2, False, 3, "max_iterations"),
    ],
)
def test_continue_value_decides_about_next_iteration(value: Any, negate: bool, iterations: int, reason: str) -> None:
    docks = [{"name": "go", "type": "continue", "negate": negate}]
    text = workflow(
        [node("loop", "loop", maxIterations=3, dockSlots=docks), node("value", "constant", "loop", value=value)],
        ["value.value > loop@dock:go:input"],
    )
    run = drive(text)
    assert run.outcome.succeeded
    assert run["loop"].outputs == {"iterations": iterations, "terminationReason": reason}


def nested(kind: str) -> str:
    """Return a loop in a loop; each continues while its count is below 3, and the inner one gets the outer count."""
    docks = [{"name": "n", "type": "iteration"}, {"name": "go", "type": "continue"}]
    inner = [
        node("inner", "loop", "outer", dockSlots=docks, inputs=["of:number"], outputs=["pair:string"]),
        node(
            "pair",
            "function",
            "inner",
            language="python",
            code='{"pair": f"{i}-{j}", "go": j < 2}',
            inputs=["i", "j"],
            outputs=["pair", "go"],
        ),
        node("more", "function", "outer", language="python", code="i < 3", inputs=["i"], outputs=["go"]),
    ]
    edges = [
        *("outer@dock:n:output > inner.of", "inner@input:of:internal > pair.i", "inner@dock:n:output > pair.j"),
        *("pair.pair > inner@output:pair:internal", "pair.go > inner@dock:go:input", "outer@dock:n:output > more.i"),
        *("more.go > outer@dock:go:input", "inner.pair > outer@output:pair:internal"),
    ]
    outer = node("outer", "loop", dockSlots=docks, outputs=["pair:string"])
    if kind == "plain":
        return workflow([outer, *inner], edges)
    part = {
        "interface": {"outputs": [{"name": "pair"}]},
        **body([outer, *inner, node("out", "interface-output")], [*edges, "outer.pair > out.pair"]),
    }
    return workflow([node("part", "component", componentRef="loops")], components={"loops": part})


@pytest.mark.parametrize(("kind", "prefix"), [("plain", ""), ("component", "part/")])
def test_loops_nest_in_loops_and_components(kind: str, prefix: str) -> None:
    run = drive(nested(kind))
    assert run.outcome.succeeded
    assert run[f"{prefix}outer"].outputs["iterations"] == 3
    pairs = {path: record.outputs["pair"] for path, record in run.records.items() if path.endswith("/pair")}
    assert pairs == {f"{prefix}outer[{i}]/inner[{j}]/pair": f"{i}-{j}" for i in (1, 2, 3) for j in (1, 2)}
    assert run[prefix.rstrip("/") or "outer"].outputs["pair"] == "3-2"


def test_edges_and_templates_cross_loop_borders() -> None:
    docks = [{"name": "go", "type": "continue"}]
    text = workflow(
        [
            node("before", "shell", script="echo hello"),
            node("loop", "loop", dockSlots=docks),
            node("inside", "shell", "loop", script="echo $INPUT_X {{ before.stdout }}", inputs=["x"]),
            node("no", "constant", "loop", value=False),
            node("after", "shell", script="echo {{ input }}!"),
        ],
        ["before.stdout > inside.x", "no.value > loop@dock:go:input", "inside.stdout > after.input"],
    )
    assert output_of(drive(text), "after") == "hello hello!"


def test_failure_in_loop_names_iteration_and_keeps_results() -> None:
    failing = node(
        "work", "shell", "loop", script="[ {{ inputs.i }} -lt 2 ] || exit 3; echo ok", inputs=["i"], outputs=["stdout"]
    )
    run = drive(
        workflow(
            [loop(outputs=["said"]), failing, node("yes", "constant", "loop", value=True)],
            ["loop@dock:i:output > work.i", "yes.value > loop@dock:go:input", "yes.value > loop@dock:count:current"],
        )
    )
    assert run.outcome.error == "“loop” failed: iteration 2: “work” failed: the script ended with exit code 3"
    assert (run["loop"].outputs["iterations"], run["loop"].outputs["terminationReason"]) == (2, "error")


def test_loop_of_older_style_counts() -> None:
    """Version 2 loops contain ``interface-*`` nodes, and the previous value is ``prev.name``."""
    text = workflow(
        [
            node("loop", "loop", inputs=[{"name": "target", "default": 3}], outputs=["final:number"]),
            node("in", "interface-input", "loop"),
            node("out", "interface-output", "loop"),
            node("again", "interface-continue", "loop"),
            COUNTER,
        ],
        [
            *("in.target > counter.target", "in.iteration > counter.i", "in@output:prev.count > counter.prev"),
            *("counter.n > out.count", "counter.go > again.continue"),
        ],
        version=2,
    )
    run = drive(text)
    assert run["loop"].outputs == {"final": 3, "count": 3, "iterations": 3, "terminationReason": "condition"}


def test_cancelled_run_ends_all_running_nodes() -> None:
    loaded = load_workflow(workflow([TRIGGER, loop(), COUNTER, node("five", "constant", value=5)], COUNTED)).checked
    records = {record.path: record for record in advance_run(loaded, manual_trigger(), {}).written}

    ended = cancel_records(records)

    assert {record.path for record in ended} == {"loop", "loop[1]", "loop[1]/counter"}
    assert all(record.state == NodeState.CANCELLED for record in ended)


def test_endless_loop_has_bounded_steps_and_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transitions, "MAX_NODE_RUNS", 2_000)
    docks = [{"name": "go", "type": "continue"}]
    loops = [
        node(name, "loop", parent, maxIterations=1000, dockSlots=docks)
        for name, parent in (("a", ""), ("b", "a"), ("c", "b"))
    ]
    values = [node(f"true-{name}", "constant", name, value=True) for name in "abc"]
    run = drive(workflow([*loops, *values], [f"true-{name}.value > {name}@dock:go:input" for name in "abc"]))
    assert run.outcome.error == "the run has more than 2000 step runs; reduce the iterations or retries"
    assert len(run.records) < 2_100


DOUBLING = [
    node(
        "loop",
        "loop",
        maxIterations=100,
        dockSlots=[{"name": "go", "type": "continue"}, {"name": "text", "type": "feedback"}],
    ),
    node("seed", "constant", "loop", value="x" * 1000),
    *(node(name, "wire", "loop") for name in ("a", "b", "both")),
    node("true", "constant", "loop", value=True),
]


def test_values_that_double_in_a_loop_are_refused() -> None:
    edges = [f"loop@dock:text:prev > {name}.value" for name in ("a", "b")]
    edges += [f"{name}.value > both.value" for name in ("a", "b", "seed")]
    edges += ["both.value > loop@dock:text:current", "true.value > loop@dock:go:input"]
    run = drive(workflow(DOUBLING, edges))
    assert "the inputs of the step are larger than 8 MiB; pass less" in run.outcome.error
    assert len(run.records) < 100


def test_outputs_of_a_node_are_bounded_and_its_session_stays() -> None:
    outputs = [{"name": f"copy{number}", "type": "string"} for number in range(20)]
    agents = Agents(lambda prompts: "x" * (1 << 20))
    run = drive(workflow([node("agent", "agent", prompt="x", outputs=outputs)]), agents=agents)
    assert "the outputs of the step are larger than 8 MiB" in run["agent"].error
    assert run["agent"].outputs == {"sessionId": "session-1", "exitCode": 0}


def test_outputs_collected_over_a_loop_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "MAX_RUN_VALUES", 50_000)
    docks = [{"name": "go", "type": "continue"}]
    nodes = [
        node("loop", "loop", maxIterations=1000, dockSlots=docks),
        node("true", "constant", "loop", value=True),
        node("text", "constant", "loop", value="x" * 1000),
    ]
    run = drive(workflow(nodes, ["true.value > loop@dock:go:input"]))
    assert "all step runs are together larger than 0 MiB; reduce the iterations" in run.outcome.error
    assert len(run.records) < 200
