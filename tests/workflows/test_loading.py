"""Loading workflow files: what is valid, and errors with file, line, node and fix."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.core.management import call_command

from sessions_app.workflows.language.diagnostics import InvalidWorkflow, Severity
from sessions_app.workflows.language.files import DirectoryFiles
from sessions_app.workflows.language.limits import MAX_NODES
from sessions_app.workflows.language.reader import read_text
from sessions_app.workflows.language.schema import WorkflowFile
from sessions_app.workflows.loader import client
from sessions_app.workflows.loader.graph_json import workflow_json_schema
from sessions_app.workflows.loader.loading import LoadResult, load_workflow
from tests.services import ROOT
from tests.workflows.workflow_builder import TRIGGER, body, load_file, node, workflow

EXAMPLES = sorted((ROOT / "docs/examples/workflows").glob("*.yaml"))
LOOP: dict[str, Any] = {"dockSlots": [{"name": "continue", "type": "continue"}, {"name": "i", "type": "iteration"}]}
TRUE = node("true", "constant", "loop", value=True, outputs=["value:boolean"])
IN_LOOP = [TRIGGER, node("loop", "loop", **LOOP), TRUE]


def errors(loaded: LoadResult) -> list[str]:
    return [one.code for one in loaded.problems if one.severity == Severity.ERROR]


def warnings(loaded: LoadResult) -> list[str]:
    return [one.code for one in loaded.problems if one.severity == Severity.WARNING]


INVALID: dict[str, tuple[str, str]] = {
    "not a mapping": ("- a", "shape"),
    "nothing": ("", "shape"),
    "no version": ("metadata: {name: a}\nnodes: []\nedges: []", "shape"),
    "future version": ("version: 4\nmetadata: {name: a}\nnodes: []\nedges: []", "shape"),
    "no name": ("version: 1\nmetadata: {}\nnodes: []\nedges: []", "shape"),
    "no edges": ("version: 1\nmetadata: {name: a}\nnodes: []", "shape"),
    "id with a slash": (workflow([node("a/b", "wire")]), "shape"),
    "duplicate id": (workflow([node("a", "wire"), node("a", "wire")]), "duplicate_id"),
    "unknown type": (workflow([node("a", "shel")]), "node_type"),
    "no type": (workflow([{"id": "a"}]), "node_type"),
    "invalid setting": (workflow([node("a", "shell", script=["x"])]), "shape"),
    "edge to nowhere": (workflow([TRIGGER], ["trigger > b"]), "edge"),
    "unknown handle": (workflow([TRIGGER, node("a", "wire")], ["trigger@x:y > a"]), "edge"),
    "no such dock": (workflow(IN_LOOP, ["true.value > loop@dock:go:input"]), "edge"),
    "dock in the wrong direction": (workflow(IN_LOOP, ["true.value > loop@dock:i:current"]), "edge"),
    "output inside": (workflow(IN_LOOP, ["loop.x > true", "true.value > loop@dock:continue:input"]), "edge"),
    "input inside": (workflow(IN_LOOP, ["true.value > loop.x", "true.value > loop@dock:continue:input"]), "edge"),
    "no edge to continue": (workflow(IN_LOOP), "loop"),
    "no continue slot": (workflow([node("loop", "loop"), TRUE]), "loop"),
    "empty loop": (workflow([node("loop", "loop", **LOOP)]), "loop"),
    "two edges to continue": (
        workflow(
            [*IN_LOOP, node("no", "constant", "loop", value=False)],
            ["true.value > loop@dock:continue:input", "no.value > loop@dock:continue:input"],
        ),
        "double",
    ),
    "parent that is not a loop": (workflow([TRIGGER, node("a", "wire", "trigger")]), "parent"),
    "loops that contain each other": (workflow([node("a", "loop", "b"), node("b", "loop", "a")]), "parent"),
    "cycle": (workflow([node("a", "wire"), node("b", "wire")], ["a > b", "b > a"]), "cycle"),
    "node that depends on itself": (workflow([node("a", "wire")], ["a > a"]), "cycle"),
    "cycle over a loop": (
        workflow(
            [*IN_LOOP, node("after", "wire")],
            ["true.value > loop@dock:continue:input", "loop > after", "after > loop.x"],
        ),
        "cycle",
    ),
    "two edges to a number": (
        workflow(
            [TRIGGER, node("f", "function", code="return {}", inputs=["n:number"])],
            ["trigger > f.n", "trigger.text > f.n"],
        ),
        "double",
    ),
    "duplicate port": (workflow([node("a", "wire", inputs=["x", "x"])]), "port"),
    "hidden port": (workflow([node("a", "wire", inputs=["@x"])]), "port"),
    "invalid pattern": (
        workflow(
            [node("a", "shell", script="x", outputs=[{"name": "x", "extract": {"type": "regex", "pattern": "("}}])]
        ),
        "pattern",
    ),
    "template in backquotes": (workflow([node("a", "shell", script="echo `{{ inputs.x }}`")]), "template_place"),
    "script outside the project": (workflow([node("a", "shell", scriptFiles=["../x.sh"])]), "path"),
    "prompt outside the project": (workflow([node("a", "agent", prompt="x", promptFiles=["/etc/passwd"])]), "path"),
    "invalid schema": (workflow([node("a", "agent", prompt="x", outputSchema="{")]), "schema"),
    "function without code": (workflow([node("a", "function")]), "no_code"),
    "no expression": (workflow([node("a", "function", language="python", code="x = 1")]), "expression"),
    "constant of another type": (workflow([node("a", "constant", valueType="number", value="x")]), "value"),
    "cron": (workflow([node("a", "trigger", triggerType="cron", cron="x")]), "cron"),
    "no cron": (workflow([node("a", "trigger", triggerType="cron")]), "cron"),
    "idle": (workflow([node("a", "trigger", triggerType="idle")]), "idle"),
    "gate without target": (workflow([node("a", "gate", inputs=["ok:boolean"])]), "gate"),
    "gate that is not reached": (
        workflow([node("b", "wire"), node("a", "gate", retryTarget="b", inputs=["ok:boolean"])]),
        "gate",
    ),
    "gate without checks": (
        workflow([node("b", "wire"), node("a", "gate", retryTarget="b")], ["b.value > a.x"]),
        "gate",
    ),
    "component without name": (workflow([node("a", "component")]), "component"),
    "missing component": (workflow([node("a", "component", componentRef="x")]), "component"),
    "component without interface": (workflow([TRIGGER], components={"a": body([TRIGGER])}), "shape"),
    "file without files": (workflow([node("a", "component", workflowPath="x.yaml")]), "component"),
    "code without files": (workflow([node("a", "function", file="x.js")]), "file"),
    "component that contains itself": (
        workflow(
            [TRIGGER],
            components={"a": {"interface": {}, **body([node("x", "component", componentRef="a")])}},
        ),
        "recursion",
    ),
    "too many iterations": (workflow([node("loop", "loop", maxIterations=1_000_000)]), "shape"),
}


@pytest.mark.parametrize(("text", "code"), INVALID.values(), ids=INVALID)
def test_invalid_workflow_is_refused(text: str, code: str) -> None:
    loaded = load_workflow(text, "w.yaml")

    assert loaded.workflow is None
    assert set(errors(loaded)) == {code}
    with pytest.raises(InvalidWorkflow, match=r"w\.yaml"):
        _ = loaded.checked


PROBABLE_MISTAKES: dict[str, tuple[str, set[str]]] = {
    "nothing": (workflow([TRIGGER, node("a", "wire")], ["trigger.text > a.value"]), set()),
    "approved continues": (
        workflow(
            [*IN_LOOP, node("check", "function", "loop", code="return {}", outputs=["approved:boolean"])],
            ["check.approved > loop@dock:continue:input"],
        ),
        {"inverted_continue", "orphan"},
    ),
    "no such output": (
        workflow([TRIGGER, node("s", "shell", script="x"), node("a", "wire")], ["trigger > s", "s.x > a"]),
        {"port"},
    ),
    "no such input": (workflow([TRIGGER, node("s", "shell", script="x")], ["trigger.text > s.x"]), {"port"}),
    "other type": (
        workflow([TRIGGER, node("f", "function", code="x", inputs=["b:boolean"])], ["trigger.params > f.b"]),
        {"type"},
    ),
    "required": (workflow([node("s", "shell", script="x", inputs=[{"name": "x", "required": True}])]), {"required"}),
    "unknown template": (workflow([node("s", "shell", script="{{ inputs.x }} {{ later.x }}")]), {"template"}),
    "template of a later node": (
        workflow([node("a", "shell", script="{{ b.x }}"), node("b", "wire")], ["a > b.value"]),
        {"template"},
    ),
    "templates of each other": (
        workflow([node("a", "shell", script="{{ b.x }}"), node("b", "shell", script="{{ a.x }}")]),
        {"template", "port"},
    ),
    "node without edges": (workflow([TRIGGER, node("a", "wire"), node("b", "wire")], ["trigger > a"]), {"orphan"}),
    "trigger without edges": (workflow([TRIGGER, node("a", "wire"), node("b", "wire")], ["a > b.value"]), {"orphan"}),
    "several edges to a text": (
        workflow([TRIGGER, node("s", "shell", script="x")], ["trigger.text > s", "trigger.type > s"]),
        {"double"},
    ),
    "file read twice": (workflow([node("s", "shell", script="sh -c 'echo {{ inputs.input }}'")]), {"read_twice"}),
}


@pytest.mark.parametrize(("text", "codes"), PROBABLE_MISTAKES.values(), ids=PROBABLE_MISTAKES)
def test_probable_mistakes_are_warnings(text: str, codes: set[str]) -> None:
    loaded = load_workflow(text)
    assert loaded.workflow is not None
    assert set(warnings(loaded)) == codes


def test_diagnostic_names_file_line_node_and_fix() -> None:
    text = (
        "version: 2\n"
        "metadata: {name: a}\n"
        "nodes:\n"
        "  - id: say\n"
        "    type: shel\n"
        "  - id: ask\n"
        "    type: shell\n"
        "    data:\n"
        "      timeout: soon\n"
        "      script: |\n"
        "        true\n"
        "        echo `{{ inputs.x }}`\n"
        "edges: []\n"
    )
    misshapen = load_workflow(text, "w.yaml")
    assert [str(one) for one in misshapen.problems] == [
        "w.yaml:4: error: step say: “shel” is not a step type [node_type] Did you mean “shell”?",
        (
            "w.yaml:9: error: step ask: nodes.1.data.timeout: input should be a valid integer, "
            "unable to parse string as an integer [shape] Correct this value."
        ),
    ]
    lines = {
        one.code: (one.line, one.node) for one in load_workflow(text.replace("shel\n", "wire\n"), "w.yaml").problems
    }
    assert lines["shape"] == (9, "ask")
    lines = {
        one.code: (one.line, one.node)
        for one in load_workflow(text.replace("shel\n", "wire\n").replace("soon", "60"), "w.yaml").problems
    }
    assert lines["template_place"] == (12, "ask")


def test_unknown_keys_are_kept() -> None:
    data = {
        "version": 2,
        "metadata": {"name": "a", "colour": "red"},
        "nodes": [{"id": "a", "type": "wire", "data": {"executionStatus": "completed"}, "selected": True}],
        "edges": [{"id": "e", "source": "a", "target": "a", "animated": True}],
        "viewport": {"zoom": 1},
    }
    assert WorkflowFile.model_validate(data).model_dump(by_alias=True, exclude_unset=True) == data


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_example_is_valid_and_conforms_to_schema(path: Path) -> None:
    loaded = load_file(path)
    assert errors(loaded) == []
    assert warnings(loaded) == (["inverted_continue"] if path.stem == "test-resumable-agent" else [])
    jsonschema.Draft202012Validator(workflow_json_schema()).validate(read_text(path.read_text(), path.name).data)


def test_published_schema_has_settings_of_each_type() -> None:
    check = jsonschema.Draft202012Validator(workflow_json_schema())
    loop = json.loads(workflow([{"id": "a", "type": "wrong", "data": {"nodeType": "loop", "maxIterations": "x"}}]))
    assert len(list(check.iter_errors(loop))) == 2


def test_too_many_nodes_are_refused() -> None:
    many = workflow([node(f"n{index}", "wire") for index in range(10_000)])
    assert errors(load_workflow(json.dumps(json.loads(many), separators=(",", ":")))) == ["too_many"]


def test_longest_chain_is_loaded_in_order() -> None:
    names = [f"n{index}" for index in range(MAX_NODES)]
    edges = [f"{one}.value > {two}.value" for one, two in itertools.pairwise(names)]
    text = json.dumps(json.loads(workflow([node(name, "wire") for name in reversed(names)], edges)))
    workflow_ = load_workflow(text).checked
    assert list(workflow_.root.order) == names


def test_doubling_components_are_counted_without_expansion() -> None:
    parts: dict[str, Any] = {"c0": {"interface": {}, **body([node("x", "wire")])}}
    for level in range(1, 41):
        twice = [node(name, "component", componentRef=f"c{level - 1}") for name in ("x", "y")]
        parts[f"c{level}"] = {"interface": {}, **body(twice)}
    top = workflow([node("all", "component", componentRef="c40")], components=parts)
    assert errors(load_workflow(top)) == ["too_many"]


def test_component_files_outside_the_project_are_refused(tmp_path: Path) -> None:
    project, outside = tmp_path / "ws", tmp_path / "ws-evil"
    (project / ".git").mkdir(parents=True)
    (project / "flows/parts").mkdir(parents=True)
    outside.mkdir()
    part = workflow([TRIGGER])
    (project / "flows/parts/ok.yaml").write_text(part)
    (outside / "part.yaml").write_text(part)
    (project / "flows/link.yaml").symlink_to(outside / "part.yaml")
    paths = {
        "flows/parts/ok.yaml": True,
        "../ws-evil/part.yaml": False,
        "flows/../../ws-evil/part.yaml": False,
        str(outside / "part.yaml"): False,
        "flows/link.yaml": False,
        "flows/none.yaml": False,
        "flows": False,
        "C:\\part.yaml": False,
        "..\\part.yaml": False,
    }
    for path, good in paths.items():
        main = project / "flows/main.yaml"
        main.write_text(workflow([node("part", "component", workflowPath=path)]))
        assert (load_file(main).workflow is not None) is good, path


def test_component_problems_name_their_file_and_cycles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(workflow([node("x", "component", workflowPath="b.yaml")]))
    (tmp_path / "b.yaml").write_text(workflow([node("y", "component", workflowPath="a.yaml")]))
    (tmp_path / "c.yaml").write_text(workflow([node("z", "shel")]))
    library = DirectoryFiles(tmp_path)
    ring = load_workflow(workflow([node("x", "component", workflowPath="a.yaml")]), "main.yaml", library)
    assert [(one.file, one.code, one.node) for one in ring.problems] == [("b.yaml", "recursion", "y")]
    wrong = load_workflow(workflow([node("x", "component", workflowPath="c.yaml")]), "main.yaml", library)
    assert [(one.file, one.code, one.node) for one in wrong.problems] == [("c.yaml", "node_type", "z")]


def test_missing_file_is_reported(tmp_path: Path) -> None:
    assert errors(client.load_file_isolated(tmp_path / "none.yaml").loaded) == ["unreadable"]


def test_all_problems_are_reported_at_once() -> None:
    """One problem hides no other, and none is reported twice in different words."""
    broken = {"interface": {}, **body([node("odd", "shel")])}
    nodes = [
        node("typo", "agnet"),
        node("child", "shell", "typo", script="x"),
        node("shapeless", "shell", timeout="soon"),
        node("stray", "shell", "nowhere", script="x"),
        node("gate", "gate", retryTarget="nobody"),
        node("loop", "loop", maxIterations=2),
        node("part", "component", componentRef="broken"),
        node("a", "wire"),
        node("b", "wire"),
        node("a", "wire"),
        {"id": "no id!", "type": "wire"},
    ]
    edges = ["typo > a", "shapeless > a", "part > b", "a > b.x", "b > a.x", "a > missing", "child > b", "gate > loop"]
    text = workflow(nodes, edges, components={"broken": broken}, maxConcurrent=99)
    loaded = load_workflow(text)
    assert loaded.workflow is None
    errors = sorted(f"{one.code} {one.node}".strip() for one in loaded.problems if one.severity == "error")
    assert errors == [
        "cycle",
        "duplicate_id a",
        "edge",
        "gate gate",
        "loop loop",
        "node_type odd",
        "node_type typo",
        "parent stray",
        "shape",
        "shape no id!",
        "shape shapeless",
    ]


def test_broken_node_hides_no_duplicate_id_or_lost_edge() -> None:
    nodes = [node("odd", "shel"), node("odd", "wire"), node("good", "wire"), node("good", "shel")]
    loaded = load_workflow(workflow(nodes, ["odd > nowhere", "nowhere > odd", "odd > good"]))
    errors = [f"{one.code} {one.node}".strip() for one in loaded.problems if one.severity == "error"]
    assert sorted(errors) == ["duplicate_id good", "duplicate_id odd", "edge", "edge", "node_type odd"]


EXAMPLE = ROOT / "docs/examples/workflows/test-resumable-agent.yaml"


def test_valid_files_are_reported_with_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("validate_workflow", str(EXAMPLE))
    output = capsys.readouterr().out.splitlines()
    assert "test-resumable-agent.yaml:19: warning: step loop: the loop continues while “approved” is true" in output[0]
    assert output[1].endswith("test-resumable-agent.yaml: valid, 4 steps")


def test_one_invalid_file_among_valid_ones_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.json"
    good.write_text(workflow([TRIGGER]))
    bad.write_text(workflow([node("a", "shel")]))
    with pytest.raises(SystemExit) as ended:
        call_command("validate_workflow", str(good), str(bad), str(tmp_path / "none.yaml"))
    output = capsys.readouterr().out
    assert ended.value.code == 2
    assert f"{good}: valid, 1 step" in output
    assert f"{bad}:7: error: step a: “shel” is not a step type [node_type] Did you mean “shell”?" in output
    assert "none.yaml: error: the file cannot be read" in output
