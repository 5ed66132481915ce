"""A loop: the nodes within it run again while its *continue* says so."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sessions_app.workflows.language.limits import MAX_ITERATIONS
from sessions_app.workflows.language.schema import DockSlot, NodeData, Port, make_port
from sessions_app.workflows.nodes import NodeType

DEFAULT_ITERATIONS: Final = 10
REPORTED_OUTPUTS: Final = (make_port("iterations", "number"), make_port("terminationReason", "string"))
"""What every loop gives beside its outputs."""


class LoopSettings(NodeData):
    """Settings of a loop."""

    max_iterations: int = Field(default=DEFAULT_ITERATIONS, ge=1, le=MAX_ITERATIONS)
    dock_slots: list[DockSlot] = Field(default_factory=list)


def implied_outputs(settings: LoopSettings) -> tuple[Port, ...]:
    """How often it ran, and why it ended."""
    return REPORTED_OUTPUTS


TYPE = NodeType(name="loop", title="Loop", settings=LoopSettings, implied=implied_outputs, is_open=True)
