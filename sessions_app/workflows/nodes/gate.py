"""The gate node type: passed if every boolean input is true; otherwise the nodes before it run again with feedback."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.language.graph import HIDDEN_PORT, GraphNode
from sessions_app.workflows.language.limits import MAX_RETRIES
from sessions_app.workflows.language.schema import NodeData, make_port
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


class GateSettings(NodeData):
    """Settings of a gate. A retry runs ``retryTarget`` again, with every node that depends on it."""

    retry_target: str = ""
    max_retries: int = Field(default=DEFAULT_RETRIES, ge=0, le=MAX_RETRIES)


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check that the gate has a condition."""
    if not any(port.type == "boolean" for port in node.inputs):
        yield SettingsIssue(
            code="gate",
            message="the gate has no input of type boolean, so it has no condition",
            fix="Add one, and connect the result of a check to it.",
            key=("inputs",),
        )


def begin_node(context: NodeContext) -> BeginResult:
    """Decide by the boolean inputs; a missing one counts as false."""
    settings = context.node.settings
    assert isinstance(settings, GateSettings)  # noqa: S101  (the settings class of the type)
    failed = [
        port.name
        for port in context.node.inputs
        if port.type == "boolean" and context.inputs.get(port.name) is not True
    ]
    outputs: dict[str, Any] = {"passed": not failed, "retry_count": context.retries, "retry_feedback": ""}
    if not failed:
        return NodeFinished(outputs | {port.name: None for port in context.node.outputs if port.name not in outputs})
    outputs["retry_feedback"] = build_feedback(context, failed)
    if context.retries >= settings.max_retries:
        return NodeFailed(
            f"the gate was not passed after {context.retries} retries: {outputs['retry_feedback'][:500]}", outputs
        )
    return GateRetry(outputs)


def build_feedback(context: NodeContext, failed: Iterable[str]) -> str:
    """Return the feedback: every text input, or else the names of the failed checks."""
    texts = [
        to_text(value).strip()
        for name, value in context.inputs.items()
        if not isinstance(value, bool) and not name.startswith(HIDDEN_PORT) and to_text(value).strip()
    ]
    return "\n\n".join(texts) or f"These checks failed: {', '.join(failed)}."


TYPES: Final = (
    NodeType(
        name="gate",
        title="Gate",
        settings=GateSettings,
        outputs=(
            make_port("passed", "boolean"),
            make_port("retry_feedback", "string"),
            make_port("retry_count", "number"),
        ),
        check=check_settings,
        begin=begin_node,
    ),
)
