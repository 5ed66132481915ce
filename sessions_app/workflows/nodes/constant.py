"""A value that stands in the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sessions_app.workflows.graph import Node
from sessions_app.workflows.nodes import Complaint, Finished, Moment, NodeType
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData, ValueType
from sessions_app.workflows.values import Unfit, fit


class ConstantSettings(NodeData):
    """Settings of a constant."""

    value_type: ValueType = "any"
    value: Any = None


def check(node: Node) -> Iterable[Complaint]:
    """The value is of the type that it says."""
    assert isinstance(node.settings, ConstantSettings)  # noqa: S101  (its type's)
    try:
        fit(node.settings.value, node.settings.value_type)
    except Unfit as error:
        yield Complaint(code="value", message=str(error), fix="Correct value or valueType.", key=("value",))


def begin(moment: Moment) -> Finished:
    """The value, under each name that the node gives it."""
    settings = moment.node.settings
    assert isinstance(settings, ConstantSettings)  # noqa: S101  (its type's)
    value = fit(settings.value, settings.value_type)
    return Finished({"value": value} | {one.name: value for one in moment.node.outputs})


TYPE = NodeType(
    name="constant",
    title="Constant",
    settings=ConstantSettings,
    outputs=(port("value"),),
    check=check,
    begin=begin,
    is_open=True,
)
