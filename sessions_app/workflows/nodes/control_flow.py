"""Node types that decide what runs: gates, loops and components.

A gate is passed if every boolean input is true; otherwise the nodes before it run again with feedback. Loops and
components have their own scope; interface nodes represent its border.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.limits import MAX_ITERATIONS, MAX_RETRIES
from sessions_app.workflows.language.schema import DockSlot, NodeData, make_port
from sessions_app.workflows.language.values import to_text
from sessions_app.workflows.nodes import (
    BeginResult,
    GateRetry,
    NodeContext,
    NodeFailed,
    NodeFinished,
    NodeType,
    SettingsIssue,
)

DEFAULT_RETRIES: Final = 3
DEFAULT_ITERATIONS: Final = 10
REPORTED_OUTPUTS: Final = (make_port("iterations", "number"), make_port("terminationReason", "string"))
"""The outputs that every loop has in addition to its own."""


class GateSettings(NodeData):
    """Settings of a gate. A retry runs ``retryTarget`` again, with every node that depends on it."""

    retry_target: str = ""
    max_retries: int = Field(default=DEFAULT_RETRIES, ge=0, le=MAX_RETRIES)


def check_gate(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that the gate has a condition."""
    if not any(port.type == "boolean" for port in node.inputs):
        yield SettingsIssue(
            code="gate",
            message="the gate has no input of type boolean, so it has no condition",
            fix="Add one, and connect the result of a check to it.",
            key=("inputs",),
        )


def begin_gate(context: NodeContext) -> BeginResult:
    """Decide by the boolean inputs; a missing one counts as false."""
    settings = context.node.settings_of(GateSettings)
    conditions = [port.name for port in context.node.inputs if port.type == "boolean"]
    failed = [name for name in conditions if context.inputs.get(name) is not True]
    outputs: dict[str, Any] = {"passed": not failed, "retry_count": context.retries, "retry_feedback": ""}
    if not failed:
        for port in context.node.outputs:
            outputs.setdefault(port.name, None)
        return NodeFinished(outputs)
    feedback = build_feedback(context, failed)
    outputs["retry_feedback"] = feedback
    if context.retries >= settings.max_retries:
        return NodeFailed(f"the gate was not passed after {context.retries} retries: {feedback[:500]}", outputs)
    return GateRetry(outputs)


def build_feedback(context: NodeContext, failed: Iterable[str]) -> str:
    """Return the feedback: every text input, or else the names of the failed checks."""
    texts = []
    for name, value in context.inputs.items():
        if isinstance(value, bool) or name.startswith(HIDDEN_PORT):
            continue
        text = to_text(value).strip()
        if text:
            texts.append(text)
    return "\n\n".join(texts) or f"These checks failed: {', '.join(failed)}."


_GATE: Final = NodeType(
    name="gate",
    title="Gate",
    settings=GateSettings,
    outputs=(
        make_port("passed", "boolean"),
        make_port("retry_feedback", "string"),
        make_port("retry_count", "number"),
    ),
    check=check_gate,
    begin=begin_gate,
)


class LoopSettings(NodeData):
    """Settings of a loop node."""

    max_iterations: int = Field(default=DEFAULT_ITERATIONS, ge=1, le=MAX_ITERATIONS)
    dock_slots: list[DockSlot] = Field(default_factory=list)


_LOOP: Final = NodeType(
    name="loop", title="Loop", settings=LoopSettings, implied=lambda settings: REPORTED_OUTPUTS, is_open=True
)


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
TYPES: Final = (_GATE, _LOOP, _COMPONENT, *_INTERFACES)
