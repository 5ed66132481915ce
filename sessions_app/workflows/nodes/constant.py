"""A value that stands in the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sessions_app.workflows.language.graph import GraphNode
from sessions_app.workflows.language.schema import NodeData, ValueType, make_port
from sessions_app.workflows.language.values import ConversionError, convert_value
from sessions_app.workflows.nodes import NodeContext, NodeFinished, NodeType, SettingsIssue


class ConstantSettings(NodeData):
    """Settings of a constant."""

    value_type: ValueType = "any"
    value: Any = None


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """The value is of the type that it says."""
    assert isinstance(node.settings, ConstantSettings)  # noqa: S101  (its type's)
    try:
        convert_value(node.settings.value, node.settings.value_type)
    except ConversionError as error:
        yield SettingsIssue(code="value", message=str(error), fix="Correct value or valueType.", key=("value",))


def begin_node(moment: NodeContext) -> NodeFinished:
    """The value, under each name that the node gives it."""
    settings = moment.node.settings
    assert isinstance(settings, ConstantSettings)  # noqa: S101  (its type's)
    value = convert_value(settings.value, settings.value_type)
    return NodeFinished({"value": value} | {one.name: value for one in moment.node.outputs})


TYPE = NodeType(
    name="constant",
    title="Constant",
    settings=ConstantSettings,
    outputs=(make_port("value"),),
    check=check_settings,
    begin=begin_node,
    is_open=True,
)
