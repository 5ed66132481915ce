"""Runs in memory from start to end, with real shells and the real limited process."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.workflows.engine.records import NodeState
from sessions_app.workflows.engine.transitions import advance_run
from sessions_app.workflows.language.files import DirectoryFiles
from sessions_app.workflows.loader.loading import load_workflow
from tests.workflows.memory_runs import Run, drive, manual_trigger
from tests.workflows.workflow_builder import TRIGGER, body, node, workflow

EXTRACTED = {"type": "regex"}


def found(name: str, kind: str, pattern: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "extract": EXTRACTED | {"pattern": pattern}}


def output_of(run: Run, path: str) -> Any:
    return run[path].outputs["output"]


def test_outputs_are_named_typed_and_extracted() -> None:
    text = workflow(
        [
            TRIGGER,
            node(
                "say",
                "shell",
                label="Say It",
                script='echo "Got {{ input }}"; echo "n=42"; echo oops >&2; echo \'{"a": {"b": [1, "x"]}}\'',
                outputs=[
                    found("n", "number", "n=(\\d+)"),
                    found("none", "number", "m=(\\d+)"),
                    {"name": "all", "type": "string", "extract": {"type": "full"}},
                ],
            ),
            node(
                "json",
                "shell",
                script='echo \'{"a": {"b": [1, "x"]}}\'',
                outputs=[{"name": "b", "extract": {"type": "json_path", "pattern": "$.a.b[1]"}}, "stdout:json"],
            ),
            node("use", "shell", script='echo "$INPUT_N and {{ say.n }} and {{ say_it.stderr }}"', inputs=["n:number"]),
        ],
        ["trigger.text > say.input", "trigger > json", "say.n > use.n"],
    )

    run = drive(text, "hello")

    assert run.outcome.succeeded
    assert run["say"].outputs["n"] == 42
    assert run["say"].outputs["none"] is None
    assert run["say"].outputs["all"].startswith("Got hello\nn=42")
    assert (run["say"].outputs["stderr"], run["say"].outputs["exitCode"]) == ("oops", 0)
    assert run["json"].outputs["b"] == "x"
    assert run["json"].outputs["stdout"] == {"a": {"b": [1, "x"]}}
    assert output_of(run, "use") == "42 and 42 and oops"


@pytest.mark.parametrize(
    ("outputs", "carried"),
    [
        (None, "hello"),
        (["timestamp:string", "type:string", "text:string", "params:json"], "hello"),
        (["topic:string"], "hello of its own"),
    ],
)
def test_edge_without_handles_carries_the_text_of_a_trigger(outputs: list[str] | None, carried: str) -> None:
    declared: dict[str, Any] = {"outputs": outputs} if outputs else {}
    start = node("trigger", "trigger", **declared)
    loaded = load_workflow(workflow([start, node("pass", "wire", inputs=["input:any"])], ["trigger > pass"])).checked
    run = manual_trigger("hello") | {"topic": "hello of its own"}
    (wired,) = (one for one in advance_run(loaded, run, {}).written if one.node == "pass")
    assert wired.inputs["input"] == carried


def test_failure_stops_dependent_nodes_unless_they_may_continue() -> None:
    def text(*, tolerant: bool) -> str:
        return workflow(
            [
                TRIGGER,
                node("good", "shell", script="echo good"),
                node("bad", "shell", script="echo out; echo err >&2; exit 42", continueOnFailure=tolerant),
                node("after-good", "shell", script="echo {{ good.stdout }}"),
                node("after-bad", "shell", script="echo $INPUT_CODE", inputs=["code:number"]),
            ],
            ["trigger > good", "trigger > bad", "good > after-good", "bad.exitCode > after-bad.code"],
        )

    stopped, went_on = drive(text(tolerant=False)), drive(text(tolerant=True))

    assert not stopped.outcome.succeeded
    assert "exit code 42" in stopped.outcome.error
    assert stopped["bad"].outputs["stderr"] == "err"
    assert stopped["after-bad"].state == NodeState.SKIPPED
    assert stopped["good"].state == NodeState.SUCCEEDED
    assert not went_on.outcome.succeeded
    assert (output_of(went_on, "after-bad"), output_of(went_on, "after-good")) == ("42", "good")


def test_missing_input_fails_its_node_and_a_sibling_still_runs() -> None:
    run = drive(
        workflow(
            [
                TRIGGER,
                node("lacking", "shell", script="true", inputs=[{"name": "data", "required": True}]),
                node("sibling", "shell", script="echo here"),
                node("after", "shell", script="true"),
            ],
            ["trigger > lacking.input", "trigger > sibling", "lacking > after"],
        )
    )
    assert run["lacking"].error == "the required input “data” is missing"
    assert (run["sibling"].state, run["after"].state) == (NodeState.SUCCEEDED, NodeState.SKIPPED)


def test_join_waits_for_all_inputs_and_concurrency_is_limited() -> None:
    names = [f"n{index}" for index in range(5)]
    text = workflow(
        [
            TRIGGER,
            *(node(name, "shell", script=f"echo {name}") for name in names),
            node("join", "shell", script="cat <<E\n{{ input }}\nE"),
        ],
        [*(f"trigger > {name}" for name in names), *(f"{name}.stdout > join.input" for name in names)],
    )
    loaded = load_workflow(text).checked
    step = advance_run(loaded, manual_trigger(), {})
    assert [record.path for record in step.begun] == names[:3]

    run = drive(text)
    assert run.begun == [*names, "join"]
    assert output_of(run, "join").split() == names


def test_functions_constants_and_wires_pass_typed_values() -> None:
    text = workflow(
        [
            node("a", "constant", valueType="number", value="10"),
            node("b", "constant", valueType="number", value=3),
            node("yes", "constant", valueType="boolean", value="true"),
            node(
                "add",
                "function",
                code="return { sum: inputs.a + inputs.b }",
                inputs=["a:number", "b:number"],
                outputs=["sum:number"],
            ),
            node(
                "concat",
                "function",
                code="return { result: inputs.values.join(inputs.separator || ' ') }",
                inputs=[
                    "separator:string",
                    *({"name": f"values[{index}]", "arrayParent": "values", "arrayIndex": index} for index in range(3)),
                ],
                outputs=["result:string"],
            ),
            node(
                "either",
                "function",
                language="python",
                code="any(values)",
                inputs=[{"name": "values", "array": True}],
                outputs=["it"],
            ),
            node("pass", "wire"),
        ],
        [
            *("a.value > add.a", "b.value > add.b", "add.sum > concat.values[2]", "a.value > concat.values[0]"),
            *("yes.value > either.values[1]", "either.it > pass.value"),
        ],
    )
    run = drive(text)
    assert run["add"].outputs == {"sum": 13}
    assert run["concat"].outputs == {"result": "10 13"}
    assert run["pass"].outputs["value"] is True


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("return 1", "did not return an object"),
        ("return {}", "did not return sum"),
        ("return {sum: 'x'}", "not a number"),
        ("throw 1", "1"),
    ],
)
def test_function_without_its_declared_outputs_fails(code: str, error: str) -> None:
    run = drive(workflow([node("add", "function", code=code, outputs=["sum:number"])]))
    assert error in run["add"].error


UPPER = {
    "interface": {"inputs": [{"name": "text", "type": "string"}], "outputs": [{"name": "result", "type": "string"}]},
    **body(
        [
            node("in", "interface-input"),
            node("up", "shell", script='echo "{{ inputs.text }}" | tr a-z A-Z', inputs=["text"]),
            node("out", "interface-output"),
        ],
        ["in.text > up.text", "up.stdout > out.result"],
    ),
}


def test_components_can_be_nested_and_reused() -> None:
    shout = {
        "interface": UPPER["interface"],
        **body(
            [
                node("in", "interface-input"),
                node("up", "component", componentRef="upper"),
                node("mark", "shell", script='echo "{{ inputs.x }}!!!"', inputs=["x"]),
                node("out", "interface-output"),
            ],
            ["in.text > up.text", "up.result > mark.x", "mark.stdout > out.result"],
        ),
    }
    text = workflow(
        [
            TRIGGER,
            node("one", "component", componentRef="shout"),
            node("two", "component", componentRef="upper", componentInputs={"text": "fixed"}),
            node("both", "shell", script="echo {{ one.result }} {{ two.result }}"),
        ],
        ["trigger.text > one.text"],
        components={"shout": shout, "upper": UPPER},
    )
    run = drive(text, "a b")
    assert output_of(run, "both") == "A B!!! FIXED"
    assert {"one/up/up", "one/mark", "two/up"} <= run.paths


def test_plain_workflow_file_can_be_used_as_a_component(tmp_path: Any) -> None:
    greet = workflow(
        [
            {"id": "trigger", "type": "trigger", "data": {"outputs": [{"name": "name"}]}},
            node("say", "shell", label="Say", script="echo Hello, {{ trigger.name }}!"),
        ],
    )
    (tmp_path / "greet.yaml").write_text(greet)
    text = workflow(
        [
            node("ada", "constant", value="Ada"),
            node("greet", "component", workflowPath="greet.yaml"),
            node("use", "wire"),
        ],
        ["ada.value > greet.name", "greet.stdout > use.value"],
    )
    run = drive(load_workflow(text, "main.yaml", DirectoryFiles(tmp_path)).checked)
    assert run["use"].outputs["value"] == "Hello, Ada!"
