"""Workflow texts that are as expensive as possible to load; each shape's size grows with a number."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.workflows.workflow_builder import node

Shape = Callable[[int], str]


def text(nodes: list[dict[str, Any]], edges: list[dict[str, str]] | None = None, **more: Any) -> str:
    """Return a workflow file as JSON on one line."""
    return json.dumps({"version": 3, "metadata": {"name": "x"}, "nodes": nodes, "edges": edges or [], **more})


def one(kind: str, **data: Any) -> str:
    """Return a workflow file with one node."""
    return text([node("a", kind, **data)])


def line(source: int, target: int, port: str = "") -> dict[str, str]:
    """Return an edge from node ``source`` to node ``target``."""
    ports = {"sourceHandle": f"output:{port}", "targetHandle": f"input:{port}"} if port else {}
    return {"source": f"n{source}", "target": f"n{target}", **ports}


def shells(number: int, script: Callable[[int], str] = lambda index: "true") -> list[dict[str, Any]]:
    """Return ``number`` shell nodes named n0, n1, …."""
    return [node(f"n{index}", "shell", script=script(index)) for index in range(number)]


def ports(number: int) -> list[dict[str, str]]:
    """Return ``number`` ports named p0, p1, …."""
    return [{"name": f"p{index}"} for index in range(number)]


def wide(number: int) -> str:
    """Return a text whose first node is connected to every other, and each of them to the last."""
    ends = [pair for index in range(1, number - 1) for pair in (line(0, index, "x"), line(index, number - 1, "y"))]
    return text(shells(number), ends)


def gates(number: int) -> str:
    """Return a text in which each gate sends back to the one before it."""
    made = [node(f"n{index}", "gate", retryTarget=f"n{index - 1}", inputs=["p:boolean"]) for index in range(1, number)]
    return text([*shells(1), *made], [line(index, index + 1, "p") for index in range(number - 1)])


def each_other(number: int) -> str:
    """Return a text in which each node refers to its predecessor and its successor."""
    return text(shells(number, lambda at: f"{{{{ n{at - 1}.output }}}} {{{{ n{at + 1}.output }}}}"))


def used_often(number: int) -> str:
    """Return a text that uses a component with many ports and a long label in many places."""
    part = {"interface": {"inputs": ports(20), "outputs": ports(20)}, **json.loads(text(shells(1)))}
    uses = [node(f"n{index}", "component", componentRef="part", label="L" * 100) for index in range(number)]
    return text(uses, components={"part": part})


def nested(number: int) -> str:
    """Return nested loops, with templates that refer through all of them."""
    docks = [{"name": "go", "type": "continue"}]
    loops = [node(f"l{depth}", "loop", f"l{depth - 1}" if depth else "", dockSlots=docks) for depth in range(8)]
    script = " ".join(f"{{{{ n0.p{index} }}}}" for index in range(number))
    return text([*shells(1), *loops, node("inner", "shell", "l7", script=script)])


SHAPES: Final[Mapping[str, Shape]] = {
    "nodes without edges": lambda number: text(shells(number)),
    "chain": lambda number: text(shells(number), [line(index, index + 1) for index in range(number - 1)]),
    "wide": wide,
    "ring": lambda number: text(shells(number), [line(index, (index + 1) % number) for index in range(number)]),
    "edges between two nodes": lambda number: text(shells(2), [line(0, 1, f"p{index}") for index in range(number)]),
    "edges to one port": lambda number: text(shells(2), [line(0, 1, "p") for _ in range(number)]),
    "edges to nowhere": lambda number: text(shells(1), [line(0, 7) for _ in range(number)]),
    "templates of the node before": lambda number: text(shells(number, lambda at: f"{{{{ n{at - 1}.output }}}}")),
    "templates of the node after": lambda number: text(shells(number, lambda at: f"{{{{ n{at + 1}.output }}}}")),
    "templates of the first node": lambda number: text(shells(number, lambda at: "{{ n0.output }}")),
    "templates of nothing": lambda number: one("shell", script="{{ no.thing }}\n" * number),
    "templates of inputs": lambda number: one("shell", script="{{ inputs.x }}\n" * number, inputs=ports(number)),
    "templates through loops": nested,
    "labels": lambda number: text(
        [node(f"n{at}", "shell", label="same", script=f"{{{{ same.p{at} }}}}") for at in range(number)]
    ),
    "braces": lambda number: one("shell", script="{{" * number),
    "braces and blanks": lambda number: one("shell", script="{{ " * number),
    "open quotes": lambda number: one("shell", script="{{ a.b }}" + "\"'`$(" * number),
    "here-documents": lambda number: one("shell", script="{{ a.b }}" + "<<X " * number + "\n" + "y\n" * number),
    "commands that read twice": lambda number: one("shell", script="eval " * number),
    "ports": lambda number: one("shell", script="true", inputs=ports(number), outputs=ports(number)),
    "ports of one name": lambda number: one("shell", script="true", inputs=[{"name": "p"}] * number),
    "properties of a schema": lambda number: one(
        "agent", prompt="x", outputs=ports(number), outputSchema={"properties": {f"q{at}": {} for at in range(number)}}
    ),
    "dock slots": lambda number: text(
        [
            node("n0", "loop", dockSlots=[{"name": f"s{at}", "type": "iteration"} for at in range(number)]),
            *shells(1)[1:],
        ],
        [{"source": "n0", "target": "n0", "sourceHandle": "dock:no:output"} for _ in range(number)],
    ),
    "component used often": used_often,
    "components without number": lambda number: text(
        [node(f"n{at}", "component", componentRef="no") for at in range(number)],
        components={f"c{at}": {"nodes": [], "edges": [], "interface": {}} for at in range(number)},
    ),
    "misshapen nodes": lambda number: text([{"no": "id"} for _ in range(number)]),
    "unknown types": lambda number: text([node(f"n{at}", f"shel{at}") for at in range(number)]),
    "aliases": lambda number: "a: &a xxxx\nb: [" + "*a," * number + "]",
    "flow of YAML": lambda number: "a: [" + "x, " * number + "]",
    "block of YAML": lambda number: "".join(f"k{at}:\n  - x\n" for at in range(number)),
}

BUDGETED: Final[Mapping[str, Shape]] = {"gates": gates, "templates that name each other": each_other}
"""Shapes whose cost may grow faster than their text, and which are refused beyond MAX_STEPS."""
