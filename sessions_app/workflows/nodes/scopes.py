"""Nodes with a scope of their own (loops and components), and the nodes that stand for the border of one."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language.limits import MAX_ITERATIONS
from sessions_app.workflows.language.schema import DockSlot, NodeData, Port, make_port
from sessions_app.workflows.nodes import NodeType

DEFAULT_ITERATIONS: Final = 10
REPORTED_OUTPUTS: Final = (make_port("iterations", "number"), make_port("terminationReason", "string"))
"""The outputs that every loop has in addition to its own."""


class LoopSettings(NodeData):
    """Settings of a loop node."""

    max_iterations: int = Field(default=DEFAULT_ITERATIONS, ge=1, le=MAX_ITERATIONS)
    dock_slots: list[DockSlot] = Field(default_factory=list)


def loop_outputs(settings: LoopSettings) -> tuple[Port, ...]:
    """Return the number of iterations, and the reason why the loop ended."""
    return REPORTED_OUTPUTS


_LOOP: Final = NodeType(name="loop", title="Loop", settings=LoopSettings, implied=loop_outputs, is_open=True)


class ComponentSettings(NodeData):
    """Settings of a component node: its file or name, and values for inputs without an edge."""

    workflow_path: str | None = None
    component_ref: str | None = None
    component_inputs: dict[str, Any] | None = None


_COMPONENT: Final = NodeType(name="component", title="Component", settings=ComponentSettings, is_open=True)

# The border of a component, or of a loop of the older style, written as a node. It never runs: the loader turns the
# edges that end or begin at it into wires of the scope itself.
_INTERFACES: Final = tuple(
    NodeType(name=f"interface-{side}", title=f"Interface: {side}", settings=NodeData, is_open=True)
    for side in ("input", "output", "continue")
)
TYPES: Final = (_LOOP, _COMPONENT, *_INTERFACES)
