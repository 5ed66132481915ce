"""A gate: passed when every boolean that comes in is true, else what leads to it is done again, told why."""

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
    """Settings of a gate. ``retryTarget`` is the node that is done again, with all that follows from it."""

    retry_target: str = ""
    max_retries: int = Field(default=DEFAULT_RETRIES, ge=0, le=MAX_RETRIES)


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """It has something to decide by."""
    if not any(one.type == "boolean" for one in node.inputs):
        yield SettingsIssue(
            code="gate",
            message="the gate has no input of type boolean",
            fix="Add one, and wire a check to it.",
            key=("inputs",),
        )


def begin_node(moment: NodeContext) -> BeginResult:
    """Look at the verdicts; one that is missing is no."""
    settings = moment.node.settings
    assert isinstance(settings, GateSettings)  # noqa: S101  (its type's)
    failed = [
        one.name for one in moment.node.inputs if one.type == "boolean" and moment.inputs.get(one.name) is not True
    ]
    outputs: dict[str, Any] = {"passed": not failed, "retry_count": moment.retries, "retry_feedback": ""}
    if not failed:
        return NodeFinished(outputs | {one.name: None for one in moment.node.outputs if one.name not in outputs})
    outputs["retry_feedback"] = build_feedback(moment, failed)
    if moment.retries >= settings.max_retries:
        return NodeFailed(f"not passed after {moment.retries} retries: {outputs['retry_feedback'][:500]}", outputs)
    return GateRetry(outputs)


def build_feedback(moment: NodeContext, failed: Iterable[str]) -> str:
    """What the checks said: every text that came in, or at least which of them failed."""
    said = [
        to_text(value).strip()
        for name, value in moment.inputs.items()
        if not isinstance(value, bool) and not name.startswith(HIDDEN_PORT) and to_text(value).strip()
    ]
    return "\n\n".join(said) or f"These checks failed: {', '.join(failed)}."


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
