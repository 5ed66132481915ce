"""The limited process: functions that work, and functions that try to escape or never end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessions_app.workflows.language import sandbox
from sessions_app.workflows.language.expressions import ExpressionError, check_expression, evaluate_expression


def javascript(code: str, **inputs: Any) -> Any:
    return sandbox.run_in_sandbox([{"operation": "javascript", "code": code, "inputs": inputs}])[0]


def test_requests_are_answered_in_order() -> None:
    answers = sandbox.run_in_sandbox(
        [
            {"operation": "javascript", "code": "return {sum: inputs.a + inputs.b}", "inputs": {"a": 10, "b": 3}},
            {"operation": "javascript", "code": "return await Promise.resolve({x: inputs.v})", "inputs": {"v": "é"}},
            {"operation": "python", "code": "{'all': all(values)}", "inputs": {"values": [True, False]}},
            {"operation": "regex", "pattern": "^Count = (\\d+)", "text": "a\nCount = 7"},
            {"operation": "regex", "pattern": "x", "text": "a"},
            {"operation": "schema", "schema": {"type": "object", "required": ["a"]}, "value": {}},
        ]
    )
    assert answers == [{"sum": 13}, {"x": "é"}, {"all": False}, "7", None, ["$: 'a' is a required property"]]
    assert sandbox.run_in_sandbox([]) == []


HOSTILE = {
    "endless loop": ("javascript", "while (true) {}"),
    "memory": ("javascript", "const a = []; while (true) a.push(new Array(100000).fill(1))"),
    "recursion": ("javascript", "function f() { return f() + 1 } f()"),
    "never settled": ("javascript", "return new Promise(() => {})"),
    "awaits forever": ("javascript", "while (true) await null"),
    "throws": ("javascript", "throw new Error('no')"),
    "invalid syntax": ("javascript", "return {"),
    "no require": ("javascript", "return require('fs')"),
    "no process": ("javascript", "return process.env"),
    "module": ("javascript", "return (await import('os')).getenv('PATH')"),
    "long answer": ("javascript", "return 'x'.repeat(3000000)"),
    "catastrophic pattern": ("regex", "(a+)+$"),
    "invalid pattern": ("regex", "("),
    "class": ("python", "().__class__.__bases__[0].__subclasses__()"),
    "import": ("python", "__import__('os').system('true')"),
    "format": ("python", "'{0.__class__}'.format(1)"),
    "long text": ("python", "'a' * 10 ** 9"),
    "great power": ("python", "9 ** 9 ** 9"),
    "long sum": ("python", "sum(range(10 ** 13))"),
    "lambda": ("python", "(lambda: 1)()"),
    "walrus": ("python", "(a := 1)"),
    "no name": ("python", "nothing + 1"),
    "deep": ("python", "(" * 5000 + ")" * 5000),
}


@pytest.mark.parametrize(("operation", "code"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_request_fails_with_message(operation: str, code: str) -> None:
    request = {"pattern": code, "text": "a" * 50 + "b"} if operation == "regex" else {"code": code, "inputs": {}}
    with pytest.raises(sandbox.SandboxError) as error:
        sandbox.run_in_sandbox([{"operation": operation, **request}])
    assert str(error.value)


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://example.invalid/schema"}, {"$ref": "file:///etc/passwd"}, {"type": "nothing"}]
)
def test_schema_references_outside_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(sandbox.SandboxError):
        sandbox.run_in_sandbox([{"operation": "schema", "schema": schema, "value": 1}])


def test_sandbox_reaches_no_files_or_processes(tmp_path: Path) -> None:
    with pytest.raises(sandbox.SandboxError, match="not defined"):
        javascript("return std.open('/etc/passwd', 'r')")
    assert javascript("return Object.keys(globalThis).sort()") == ["answer", "given"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + 1", 3),
        ("inputs.a if inputs['b'] else 'no'", 2),
        ("[x * 2 for x in items if x > 1]", [4, 6]),
        ("sum(x for x in items)", 6),
        ("f'{a}-{name.upper()}'", "2-ADA"),
        ("name.split('d')[0][::-1]", "A"),
        ("1 < a <= 2 and not b == 'x'", True),
        ("true and null", None),
        ("{'n': len(items), 'last': items[-1]}", {"n": 3, "last": 3}),
        ("deep.x.y", 1),
        ("deep.x.get('z', 'none')", "none"),
        ("'a' in name.lower()", True),
        ("(1, 2)", [1, 2]),
        ("list(zip(items, range(3)))", [[1, 0], [2, 1], [3, 2]]),
    ],
)
def test_expression_is_evaluated(expression: str, value: Any) -> None:
    inputs = {"a": 2, "b": True, "items": [1, 2, 3], "name": "Ada", "deep": {"x": {"y": 1}}}
    assert evaluate_expression(expression, inputs) == value


@pytest.mark.parametrize("expression", ["x = 1", "import os", "await x", "yield 1", "[*a]", "", "{**a}", "f(**a)"])
def test_syntax_other_than_expressions_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        check_expression(expression)
        evaluate_expression(expression, {"a": {}, "x": 1})
