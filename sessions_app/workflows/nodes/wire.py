"""A value passed on, so that a drawing stays clear."""

from __future__ import annotations

from sessions_app.workflows.graph import HIDDEN
from sessions_app.workflows.nodes import Finished, Moment, NodeType
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData


def begin(moment: Moment) -> Finished:
    """What came in, under the same names; ``value`` is the first of it where none has this name."""
    values = {name: value for name, value in moment.inputs.items() if not name.startswith(HIDDEN)}
    first = next(iter(values.values()), None)
    return Finished({"value": first} | values)


TYPE = NodeType(
    name="wire", title="Wire", settings=NodeData, inputs=(port("value"),), outputs=(port("value"),), begin=begin
)
