"""A value passed on, so that a drawing stays clear."""

from __future__ import annotations

from sessions_app.workflows.language.graph import HIDDEN_PORT
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.nodes import NodeContext, NodeFinished, NodeType


def begin_node(moment: NodeContext) -> NodeFinished:
    """What came in, under the same names; ``value`` is the first of it where none has this name."""
    values = {name: value for name, value in moment.inputs.items() if not name.startswith(HIDDEN_PORT)}
    first = next(iter(values.values()), None)
    return NodeFinished({"value": first} | values)


TYPE = NodeType(
    name="wire",
    title="Wire",
    settings=NodeData,
    inputs=(make_port("value"),),
    outputs=(make_port("value"),),
    begin=begin_node,
)
