"""Nodes that give a value: a constant, a wire that passes values on, a working directory, and a function.

A function of its inputs is a function body in JavaScript, or an expression in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import Field

from sessions_app.workflows.language import expressions
from sessions_app.workflows.language.files import is_relative_below
from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.schema import NodeData, ValueType, make_port
from sessions_app.workflows.language.values import ConversionError, TooLong, convert_value, render_template
from sessions_app.workflows.nodes import (
    BeginResult,
    EndResult,
    FinishedWork,
    NodeContext,
    NodeFailed,
    NodeFinished,
    NodeType,
    RunInSandbox,
    SettingsIssue,
    WorkRequest,
    convert_ports,
)


class ConstantSettings(NodeData):
    """Settings of a constant node."""

    value_type: ValueType = "any"
    value: Any = None


def check_constant(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that the value has the declared type."""
    settings = node.settings_of(ConstantSettings)
    try:
        convert_value(settings.value, settings.value_type)
    except ConversionError as error:
        yield SettingsIssue(code="value", message=str(error), fix="Correct value or valueType.", key=("value",))


def begin_constant(context: NodeContext) -> NodeFinished:
    """Return the value for each output of the node."""
    settings = context.node.settings_of(ConstantSettings)
    value = convert_value(settings.value, settings.value_type)
    return NodeFinished({"value": value} | {port.name: value for port in context.node.outputs})


_CONSTANT: Final = NodeType(
    name="constant",
    title="Constant",
    settings=ConstantSettings,
    outputs=(make_port("value"),),
    check=check_constant,
    begin=begin_constant,
    is_open=True,
)


def begin_wire(context: NodeContext) -> NodeFinished:
    """Return the inputs under their own names; ``value`` is the first of them unless one has that name."""
    values = {name: value for name, value in context.inputs.items() if not name.startswith(HIDDEN_PORT)}
    first = next(iter(values.values()), None)
    return NodeFinished({"value": first} | values)


_WIRE: Final = NodeType(
    name="wire",
    title="Wire",
    settings=NodeData,
    inputs=(make_port("value"),),
    outputs=(make_port("value"),),
    begin=begin_wire,
)


class WorkdirSettings(NodeData):
    """Settings of a working directory node."""

    path: str = Field(default=".", max_length=4096)


def begin_workdir(context: NodeContext) -> BeginResult:
    """Return the path, and fail if it is outside the workspace."""
    settings = context.node.settings_of(WorkdirSettings)
    try:
        path = render_template(settings.path, context.look_up)
    except TooLong as error:
        return NodeFailed(f"the path is too long: {error}")
    if is_relative_below(path):
        return NodeFinished({"path": path})
    return NodeFailed(f"“{path}” is outside the workspace")


_WORKDIR: Final = NodeType(
    name="workdir",
    title="Working directory",
    settings=WorkdirSettings,
    inputs=(make_port("input"),),
    outputs=(make_port("path", "string"),),
    texts=lambda settings: [(("path",), settings.path)],
    begin=begin_workdir,
)


class FunctionSettings(NodeData):
    """Settings of a function node. The loader reads ``file`` into ``code``."""

    language: Literal["javascript", "python"] = "javascript"
    code: str | None = Field(default=None, max_length=100_000)
    file: str | None = None


def check_function(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that there is code, and that Python code is a valid expression."""
    settings = node.settings_of(FunctionSettings)
    if not settings.code and not settings.file:
        yield SettingsIssue(code="no_code", message="the function has no code", fix="Add “code” or “file”.")
    if settings.code and settings.language == "python":
        try:
            expressions.check_expression(settings.code)
        except expressions.ExpressionError as error:
            yield SettingsIssue(
                code="expression", message=str(error), fix="Write a single valid expression.", key=("code",)
            )


def begin_function(context: NodeContext) -> BeginResult:
    """Request a call in the sandbox process."""
    settings = context.node.settings_of(FunctionSettings)
    inputs = {name: value for name, value in context.inputs.items() if not name.startswith(HIDDEN_PORT)}
    return WorkRequest(
        {"kind": "function", "operation": settings.language, "code": settings.code or "", "inputs": inputs}
    )


def end_function(node: GraphNode, done: FinishedWork, run_in_sandbox: RunInSandbox) -> EndResult:
    """Return the outputs. ``result`` has value or error.

    The value is an object with every declared output; in Python it may also be the value of the only output.
    """
    result = done.result
    if result.get("error"):
        return NodeFailed(str(result["error"]))
    value = result.get("value")
    names = [port.name for port in node.outputs]
    may_be_plain = len(names) == 1 and node.settings_of(FunctionSettings).language == "python"
    if not isinstance(value, dict) or (may_be_plain and names[0] not in value):
        if not may_be_plain:
            return NodeFailed(f"the function did not return an object with {', '.join(names)}")
        value = {names[0]: value}
    missing = [name for name in names if name not in value]
    if missing:
        return NodeFailed(f"the function did not return {', '.join(missing)}")
    try:
        return NodeFinished(convert_ports(node.outputs, value))
    except ConversionError as error:
        return NodeFailed(f"the output {error}")


_FUNCTION: Final = NodeType(
    name="function",
    title="Function",
    settings=FunctionSettings,
    outputs=(make_port("result"),),
    check=check_function,
    begin=begin_function,
    end=end_function,
    is_open=True,
)

TYPES: Final = (_CONSTANT, _WIRE, _WORKDIR, _FUNCTION)
