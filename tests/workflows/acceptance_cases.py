"""Workflows in the shapes of other loop engines, each with its expected result.

The names are the acceptance cases of those engines (30-46), with the shapes of their example files, and cases of
our own (Q-S). ``test_acceptance`` runs them in memory, ``test_real_runs`` in a whole deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.workflows.workflow_builder import TRIGGER, body, node, workflow


@dataclass(frozen=True)
class Case:
    """A text and its expected result: ``outputs`` by path and port, ``errors`` by path (empty: of the run)."""

    text: str
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    not_run: tuple[str, ...] = ()
    """Paths of the nodes that never start."""

    @property
    def succeeds(self) -> bool:
        """Return whether the run succeeds."""
        return not self.errors


def shell(name: str, script: str, parent: str = "", **data: Any) -> dict[str, Any]:
    return node(name, "shell", parent, script=script, **data)


def extract(name: str, kind: str, pattern: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "extract": {"type": "regex", "pattern": pattern}}


def loop(name: str, most: int, slots: tuple[str, ...] = (), parent: str = "", **data: Any) -> dict[str, Any]:
    kinds = {"i": "iteration", "go": "continue"}
    docks = [{"name": slot, "type": kinds.get(slot, "feedback")} for slot in ("i", "go", *slots)]
    return node(name, "loop", parent, maxIterations=most, dockSlots=docks, **data)


def constant(name: str, value: Any, kind: str = "boolean", parent: str = "") -> dict[str, Any]:
    return node(name, "constant", parent, valueType=kind, value=value)


SUM = [
    constant("five", 5, "number"),
    constant("eight", 8, "number"),
    node(
        "sum",
        "function",
        language="javascript",
        code="return { result: inputs.a + inputs.b }",
        inputs=["a:number", "b:number"],
        outputs=["result:number"],
    ),
]
GREETING: Final = {
    "interface": {"inputs": [{"name": "who", "type": "string"}], "outputs": [{"name": "text", "type": "string"}]},
    **body(
        [
            node("in", "interface-input", outputs=["who"]),
            shell("say", 'echo "Hello, {{ inputs.who }}"', inputs=["who"]),
            node("out", "interface-output", inputs=["text"]),
        ],
        ["in.who > say.who", "say.output > out.text"],
    ),
}
BODY_OF_LOOP = (
    [
        node(
            "count",
            "function",
            "l",
            language="python",
            code='{"n": (n or 0) + 1, "more": (n or 0) + 1 < 5}',
            inputs=["n:number"],
            outputs=["n:number", "more:boolean"],
        )
    ],
    [
        "l@dock:kept:prev > count.n",
        "count@output:n > l@dock:kept:current",
        "count@output:more > l@dock:go:input",
        "count@output:n > l@output:last:internal",
    ],
)
COUNTING: Final = {
    "interface": {"inputs": [], "outputs": [{"name": "n", "type": "number"}]},
    **body(
        [
            loop("l", 9, ("kept",), outputs=["last:number"]),
            *BODY_OF_LOOP[0],
            node("out", "interface-output", inputs=["n"]),
        ],
        [*BODY_OF_LOOP[1], "l.last > out.n"],
    ),
}

CASES: Final[Mapping[str, Case]] = {
    "30 named outputs are extracted, and the trigger gives its text": Case(
        workflow(
            [
                TRIGGER,
                shell("a", "echo count=7; echo '{{ trigger.text }}'", outputs=["output:string"]),
                shell("b", "echo count=7", outputs=[extract("count", "number", "count=(\\d+)")]),
                shell("c", "echo {{ b.count }}"),
            ],
            ["trigger > a", "trigger > b", "b.count > c.count"],
        ),
        {"a": {"output": "count=7\nT"}, "b": {"count": 7}, "c": {"output": "7"}},
    ),
    "31 a failure that may be goes on with exit code and stderr": Case(
        workflow(
            [
                shell("a", "echo bad >&2; exit 42", continueOnFailure=True),
                shell("b", "echo {{ a.exitCode }} {{ a.stderr }}"),
            ],
            ["a.exitCode > b.code"],
        ),
        {"a": {"exitCode": 42}, "b": {"output": "42 bad"}},
        {"": "", "a": ""},
    ),
    "32 a failure stops what follows": Case(
        workflow([shell("a", "exit 3"), shell("b", "echo never")], ["a > b"]),
        {"a": {"exitCode": 3}},
        {"a": "3"},
        ("b",),
    ),
    "33 a missing input fails its node, and its sibling still runs": Case(
        workflow(
            [
                TRIGGER,
                shell("ok", "echo fine"),
                shell("bad", "echo never", inputs=[{"name": "wanted", "type": "string", "required": True}]),
            ],
            ["trigger > ok", "trigger > bad"],
        ),
        {"ok": {"output": "fine"}},
        {"bad": "wanted"},
    ),
    "34 a loop with feedback iterates five times": Case(
        workflow([loop("l", 9, ("kept",), outputs=["last:number"]), *BODY_OF_LOOP[0]], BODY_OF_LOOP[1]),
        {"l": {"iterations": 5, "last": 5, "terminationReason": "condition"}},
    ),
    "35 a loop within a loop": Case(
        workflow(
            [
                loop("outer", 3),
                loop("inner", 2, parent="outer"),
                constant("yes", True, parent="inner"),
                constant("again", True, parent="outer"),
            ],
            ["yes.value > inner@dock:go:input", "again.value > outer@dock:go:input"],
        ),
        {"outer": {"iterations": 3}, "outer[3]/inner": {"iterations": 2}},
    ),
    "36 a loop that is always told to go on ends at its cap": Case(
        workflow([loop("l", 3), constant("c", True, parent="l")], ["c.value > l@dock:go:input"]),
        {"l": {"iterations": 3, "terminationReason": "max_iterations"}},
    ),
    "37 a loop that is told to stop iterates once": Case(
        workflow([loop("l", 3), constant("c", False, parent="l")], ["c.value > l@dock:go:input"]),
        {"l": {"iterations": 1, "terminationReason": "condition"}},
    ),
    "38 a function adds": Case(workflow(SUM, ["five.value > sum.a", "eight.value > sum.b"]), {"sum": {"result": 13}}),
    "39 logic": Case(
        workflow(
            [
                constant("t", True),
                constant("f", False),
                node(
                    "and",
                    "function",
                    code="return { result: inputs.a && inputs.b }",
                    inputs=["a:boolean", "b:boolean"],
                    outputs=["result:boolean"],
                ),
                node(
                    "or",
                    "function",
                    code="return { result: inputs.a || inputs.b }",
                    inputs=["a:boolean", "b:boolean"],
                    outputs=["result:boolean"],
                ),
                node(
                    "not",
                    "function",
                    code="return { result: !inputs.a }",
                    inputs=["a:boolean"],
                    outputs=["result:boolean"],
                ),
            ],
            ["t.value > and.a", "f.value > and.b", "t.value > or.a", "f.value > or.b", "f.value > not.a"],
        ),
        {"and": {"result": False}, "or": {"result": True}, "not": {"result": True}},
    ),
    "40 array ports in their order, and slots that nothing leads to are left out": Case(
        workflow(
            [
                constant("hello", "Hello ", "string"),
                constant("world", "World ", "string"),
                constant("mark", "!", "string"),
                node(
                    "concat",
                    "function",
                    code="return { result: inputs.values.join('') }",
                    outputs=["result:string"],
                    inputs=[
                        {"name": f"values[{n}]", "type": "string", "arrayIndex": n, "arrayParent": "values"}
                        for n in range(4)
                    ],
                ),
            ],
            ["hello.value > concat.values[0]", "world.value > concat.values[1]", "mark.value > concat.values[3]"],
        ),
        {"concat": {"result": "Hello World !"}},
    ),
    "41 a component, and the same one twice": Case(
        workflow(
            [
                TRIGGER,
                node("one", "component", componentRef="greeting"),
                node("two", "component", componentRef="greeting"),
            ],
            ["trigger.text > one.who", "one.text > two.who"],
            components={"greeting": GREETING},
        ),
        {"one": {"text": "Hello, T"}, "two": {"text": "Hello, Hello, T"}},
    ),
    "42 what could be a component runs alone": Case(
        workflow([TRIGGER, shell("say", 'echo "Greetings, {{ trigger.text }}!"')], ["trigger.text > say.input"]),
        {"say": {"output": "Greetings, T!"}},
    ),
    "44 a join waits for all": Case(
        workflow(
            [shell("a", "echo A"), shell("b", "sleep 1; echo B"), shell("c", "echo {{ a.output }}{{ b.output }}")],
            ["a > c", "b > c"],
        ),
        {"c": {"output": "AB"}},
    ),
    "45 one of three fails, and what waits for it does not begin": Case(
        workflow(
            [shell("a", "echo A"), shell("b", "exit 1"), shell("c", "echo C"), shell("d", "echo never")],
            ["a > d", "b > d", "c > d"],
        ),
        {"a": {"output": "A"}, "c": {"output": "C"}},
        {"b": "1"},
        ("d",),
    ),
    "46 one of two may fail, and what waits for it begins": Case(
        workflow(
            [shell("a", "exit 1", continueOnFailure=True), shell("b", "echo B"), shell("d", "echo after")],
            ["a > d", "b > d"],
        ),
        {"d": {"output": "after"}},
        {"": "", "a": ""},
    ),
    "Q a loop's output keeps its type": Case(
        workflow(
            [
                loop("l", 9, ("kept",), outputs=["last:number"]),
                *BODY_OF_LOOP[0],
                node(
                    "twice",
                    "function",
                    language="python",
                    code='{"n": n * 2}',
                    inputs=["n:number"],
                    outputs=["n:number"],
                ),
            ],
            [*BODY_OF_LOOP[1], "l.last > twice.n"],
        ),
        {"twice": {"n": 10}},
    ),
    "R a loop within a component": Case(
        workflow(
            [TRIGGER, node("c", "component", componentRef="counting"), shell("s", "echo {{ c.n }}")],
            ["trigger > c", "c.n > s.n"],
            components={"counting": COUNTING},
        ),
        {"c": {"n": 5}, "s": {"output": "5"}},
    ),
    "S a gate sends back what it does not let pass": Case(
        workflow(
            [
                shell("try", "echo x >> tries; wc -l < tries | tr -d ' '", outputs=["output:string"]),
                node(
                    "enough",
                    "function",
                    language="python",
                    code='{"ok": int(n) >= 3}',
                    inputs=["n:string"],
                    outputs=["ok:boolean"],
                ),
                node("gate", "gate", retryTarget="try", maxRetries=3, inputs=["ok:boolean"]),
                shell("done", "cat tries | wc -l | tr -d ' '"),
            ],
            ["try.output > enough.n", "enough.ok > gate.ok", "gate.passed > done.passed"],
        ),
        {"try#3": {"output": "3"}, "gate#3": {"passed": True, "retry_count": 2}, "done": {"output": "3"}},
    ),
}
