"""A gate: passed when every boolean that comes in is true, else what leads to it is done again, told why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic import Field

from sessions_app.workflows.graph import HIDDEN, Node
from sessions_app.workflows.limits import MAX_RETRIES
from sessions_app.workflows.nodes import Beginning, Complaint, Failed, Finished, Moment, NodeType, Retry
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData
from sessions_app.workflows.values import to_text

DEFAULT_RETRIES: Final = 3


class GateSettings(NodeData):
    """Settings of a gate. ``retryTarget`` is the node that is done again, with all that follows from it."""

    retry_target: str = ""
    max_retries: int = Field(default=DEFAULT_RETRIES, ge=0, le=MAX_RETRIES)


def check(node: Node) -> Iterable[Complaint]:
    """It has something to decide by."""
    if not any(one.type == "boolean" for one in node.inputs):
        yield Complaint(
            code="gate",
            message="the gate has no input of type boolean",
            fix="Add one, and wire a check to it.",
            key=("inputs",),
        )


def begin(moment: Moment) -> Beginning:
    """Look at the verdicts; one that is missing is no."""
    settings = moment.node.settings
    assert isinstance(settings, GateSettings)  # noqa: S101  (its type's)
    failed = [
        one.name for one in moment.node.inputs if one.type == "boolean" and moment.inputs.get(one.name) is not True
    ]
    outputs: dict[str, Any] = {"passed": not failed, "retry_count": moment.retries, "retry_feedback": ""}
    if not failed:
        return Finished(outputs | {one.name: None for one in moment.node.outputs if one.name not in outputs})
    outputs["retry_feedback"] = feedback(moment, failed)
    if moment.retries >= settings.max_retries:
        return Failed(f"not passed after {moment.retries} retries: {outputs['retry_feedback'][:500]}", outputs)
    return Retry(outputs)


def feedback(moment: Moment, failed: Iterable[str]) -> str:
    """What the checks said: every text that came in, or at least which of them failed."""
    said = [
        to_text(value).strip()
        for name, value in moment.inputs.items()
        if not isinstance(value, bool) and not name.startswith(HIDDEN) and to_text(value).strip()
    ]
    return "\n\n".join(said) or f"These checks failed: {', '.join(failed)}."


TYPE = NodeType(
    name="gate",
    title="Gate",
    settings=GateSettings,
    outputs=(port("passed", "boolean"), port("retry_feedback", "string"), port("retry_count", "number")),
    check=check,
    begin=begin,
)
