"""Nodes that give a value: a constant, a wire that passes values on, and a working directory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language.files import is_relative_below
from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.schema import NodeData, ValueType, make_port
from sessions_app.workflows.language.values import ConversionError, TooLong, convert_value, render_template
from sessions_app.workflows.nodes import BeginResult, NodeContext, NodeFailed, NodeFinished, NodeType, SettingsIssue


class ConstantSettings(NodeData):
    """Settings of a constant node."""

    value_type: ValueType = "any"
    value: Any = None


def check_constant(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that the value has the declared type."""
    assert isinstance(node.settings, ConstantSettings)  # noqa: S101  (the settings class of the type)
    try:
        convert_value(node.settings.value, node.settings.value_type)
    except ConversionError as error:
        yield SettingsIssue(code="value", message=str(error), fix="Correct value or valueType.", key=("value",))


def begin_constant(context: NodeContext) -> NodeFinished:
    """Return the value for each output of the node."""
    settings = context.node.settings
    assert isinstance(settings, ConstantSettings)  # noqa: S101  (the settings class of the type)
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


def workdir_texts(settings: WorkdirSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """Yield the path, which may contain templates."""
    yield ("path",), settings.path


def begin_workdir(context: NodeContext) -> BeginResult:
    """Return the path, and fail if it is outside the workspace."""
    settings = context.node.settings
    assert isinstance(settings, WorkdirSettings)  # noqa: S101  (the settings class of the type)
    try:
        path = render_template(settings.path, context.look_up)
    except TooLong as error:
        return NodeFailed(f"the path is too long: {error}")
    return NodeFinished({"path": path}) if is_relative_below(path) else NodeFailed(f"“{path}” is outside the workspace")


_WORKDIR: Final = NodeType(
    name="workdir",
    title="Working directory",
    settings=WorkdirSettings,
    inputs=(make_port("input"),),
    outputs=(make_port("path", "string"),),
    texts=workdir_texts,
    begin=begin_workdir,
)

TYPES: Final = (_CONSTANT, _WIRE, _WORKDIR)
