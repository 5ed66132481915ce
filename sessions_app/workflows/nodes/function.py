"""The node type for a function of its inputs: a function body in JavaScript, or an expression in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import Field

from sessions_app.workflows.language import expressions
from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.language.values import ConversionError
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


class FunctionSettings(NodeData):
    """Settings of a function node. The loader reads ``file`` into ``code``."""

    language: Literal["javascript", "python"] = "javascript"
    code: str | None = Field(default=None, max_length=100_000)
    file: str | None = None


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that there is code, and that Python code is a valid expression."""
    settings = node.settings
    assert isinstance(settings, FunctionSettings)  # noqa: S101  (the settings class of the type)
    if not settings.code and not settings.file:
        yield SettingsIssue(code="no_code", message="the function has no code", fix="Add “code” or “file”.")
    if settings.code and settings.language == "python":
        try:
            expressions.check_expression(settings.code)
        except expressions.ExpressionError as error:
            yield SettingsIssue(
                code="expression", message=str(error), fix="Write a single valid expression.", key=("code",)
            )


def begin_node(context: NodeContext) -> BeginResult:
    """Request a call in the sandbox process."""
    settings = context.node.settings
    assert isinstance(settings, FunctionSettings)  # noqa: S101  (the settings class of the type)
    inputs = {name: value for name, value in context.inputs.items() if not name.startswith(HIDDEN_PORT)}
    return WorkRequest(
        {"kind": "function", "operation": settings.language, "code": settings.code or "", "inputs": inputs}
    )


def end_node(node: GraphNode, done: FinishedWork, run_in_sandbox: RunInSandbox) -> EndResult:
    """Return the outputs. ``result`` has value or error.

    The value is an object with every declared output; in Python it may also be the value of the only output.
    """
    result = done.result
    if result.get("error"):
        return NodeFailed(str(result["error"]))
    value = result.get("value")
    names = [port.name for port in node.outputs]
    if not isinstance(value, dict) or (len(names) == 1 and names[0] not in value and _is_python(node)):
        if len(names) != 1 or not _is_python(node):
            return NodeFailed(f"the function did not return an object with {', '.join(names)}")
        value = {names[0]: value}
    missing = [name for name in names if name not in value]
    if missing:
        return NodeFailed(f"the function did not return {', '.join(missing)}")
    try:
        return NodeFinished(convert_ports(node.outputs, value))
    except ConversionError as error:
        return NodeFailed(f"the output {error}")


def _is_python(node: GraphNode) -> bool:
    return isinstance(node.settings, FunctionSettings) and node.settings.language == "python"


TYPES: Final = (
    NodeType(
        name="function",
        title="Function",
        settings=FunctionSettings,
        outputs=(make_port("result"),),
        check=check_settings,
        begin=begin_node,
        end=end_node,
        is_open=True,
    ),
)
