"""File formats of workflows since version 1: files of each load and run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sessions_app.workflows.language.reader import read_text
from sessions_app.workflows.loader.loading import load_workflow
from tests.services import ROOT
from tests.workflows.memory_runs import drive
from tests.workflows.test_loading import EXAMPLES

SHAPES = {
    "version 1: commands, labels, no handles, no ids of edges": (
        """
version: 1
metadata: {name: Hello, description: '', rootDirectory: /somewhere/else}
nodes:
  - {id: t1, type: trigger, position: {x: 1, y: 2}, data: {label: Start, triggerType: manual, nodeType: trigger}}
  - id: s1
    type: shell
    position: {x: 100, "y": 150}
    data:
      {label: First Step, nodeType: shell, commands: [echo one, "cd /; echo {{ input }}", pwd], executionStatus: done}
  - {id: s2, type: shell, data: {nodeType: shell, script: "echo '{{ first_step.output }}' | wc -l"}}
edges:
  - {source: t1, target: s1}
  - {source: s1, target: s2}
""",
        {"s1": f"one\nT\n{ROOT}", "s2": "3"},
    ),
    "the type in the data takes precedence": (
        """
version: 2
metadata: {name: a}
nodes: [{id: a, type: agent, data: {nodeType: shell, script: echo here}}]
edges: []
""",
        {"a": "here"},
    ),
    "a script in the oldest form": (
        "{version: 1, metadata: {name: a}, nodes: [{id: a, type: script, data: {script: echo old}}], edges: []}",
        {"a": "old"},
    ),
    "no script": (
        "{version: 1, metadata: {name: a}, nodes: [{id: a, type: shell, data: {}}], edges: []}",
        {"a": ""},
    ),
    "a trigger without successors": (
        """
version: 1
metadata: {name: a}
nodes: [{id: t, type: trigger, data: {triggerType: idle, idleMinutes: 2}}]
edges: []
""",
        {},
    ),
    "wires": (
        """
version: 1
metadata: {name: a}
nodes:
  - {id: t, type: trigger}
  - {id: w1, type: wire}
  - {id: w2, type: wire}
  - {id: s, type: shell, data: {script: 'echo {{ w2.value }}'}}
edges:
  - {source: t, target: w1, sourceHandle: "output:type", targetHandle: "input:value"}
  - {source: w1, target: w2, sourceHandle: "output:value", targetHandle: "input:value"}
""",
        {"s": "manual"},
    ),
    "edges without handles join": (
        """
version: 2
metadata: {name: a}
nodes:
  - {id: a, type: shell, data: {script: echo A}}
  - {id: b, type: shell, data: {script: echo B}}
  - {id: c, type: shell, data: {script: 'echo {{ a.output }}{{ b.output }}'}}
edges: [{id: e1, source: a, target: c}, {id: e2, source: b, target: c}]
""",
        {"c": "AB"},
    ),
    "text with quotes and other characters": (
        """
version: 2
metadata: {name: a}
nodes:
  - {id: a, type: constant, data: {valueType: string, value: "it's \\"$(x)\\""}}
  - {id: b, type: shell, data: {script: "echo \\"{{ inputs.x }}\\" '{{ inputs.x }}'", inputs: [{name: x}]}}
edges: [{source: a, target: b, sourceHandle: output:value, targetHandle: input:x}]
""",
        {"b": 'it\'s "$(x)" it\'s "$(x)"'},
    ),
    "a directory of the workspace": (
        """
version: 2
metadata: {name: a}
nodes:
  - {id: dir, type: workdir, data: {path: tests/workflows}}
  - {id: b, type: shell, data: {script: ls memory_runs.py, inputs: [{name: cwd}]}}
edges: [{source: dir, target: b, sourceHandle: output:path, targetHandle: input:cwd}]
""",
        {"b": "memory_runs.py"},
    ),
    "a component without edges has no outputs": (
        """
version: 3
metadata: {name: a}
components:
  parser:
    interface: {inputs: [{name: input, type: string, required: true}], outputs: [{name: output, type: string}]}
    nodes: [{id: in, type: interface-input}, {id: out, type: interface-output}]
    edges: []
nodes:
  - {id: t, type: trigger}
  - {id: p, type: component, data: {componentRef: parser}}
  - {id: s, type: shell, data: {script: 'echo "<{{ p.output }}>"'}}
edges: [{source: t, target: p, sourceHandle: output:text, targetHandle: input:input}]
""",
        {"s": "<>"},
    ),
}


@pytest.mark.parametrize(("text", "outputs"), SHAPES.values(), ids=SHAPES)
def test_file_of_this_shape_runs(text: str, outputs: dict[str, str]) -> None:
    run = drive(text)
    assert run.outcome.succeeded, run.outcome.error
    assert {path: run[path].outputs["output"] for path in outputs} == outputs


@pytest.mark.parametrize("path", ["../x", "/etc", "a/../../b"])
def test_directories_outside_the_workspace_are_refused(path: str) -> None:
    text = (
        "{version: 2, metadata: {name: a}, nodes: [{id: c, type: constant, data: {value: '%s'}}, "
        "{id: d, type: workdir, data: {path: '{{ c.value }}'}}, "
        "{id: s, type: shell, data: {script: pwd, inputs: [{name: cwd}]}}], "
        "edges: [{source: c, target: s, sourceHandle: 'output:value', targetHandle: 'input:cwd'}]}"
    )
    run = drive(text % path)
    assert ["is outside the workspace" in run[name].error for name in ("d", "s")] == [True, True]


WORTHLESS: list[Any] = [None, 0, -1, "", [], {}, "loop", True, [[]], {"a": 1}, [{}], "dock:x:prev", "{{ a.b }}", 10**18]


def places(data: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, dict):
        parts = data.items()
    elif isinstance(data, list):
        parts = enumerate(data)
    found = [place]
    for key, part in parts:
        found += places(part, (*place, key))
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_damaged_file_is_refused_or_valid(path: Path) -> None:
    source, chance = path.read_text(), random.Random(path.stem)
    for _ in range(60):
        data = read_text(source, path.name).data
        for _ in range(chance.randint(1, 3)):
            *around, key = chance.choice(places(data)[1:])
            owner = data
            for step in around:
                owner = owner[step]
            owner[key] = chance.choice(WORTHLESS)
        loaded = load_workflow(json.dumps(data), path.name)
        assert (loaded.workflow is None) is any(one.severity == "error" for one in loaded.problems)
