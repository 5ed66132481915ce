"""Where a run begins: by hand, by the clock, or when nothing else goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import Field

from sessions_app.workflows.cron import CronError, parse
from sessions_app.workflows.graph import Node
from sessions_app.workflows.nodes import Complaint, Finished, Moment, NodeType
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData

OF_ITSELF: Final = frozenset({"timestamp", "type", "params"})
"""What a trigger gives without being told; ``text`` is told as declared inputs are."""


class TriggerSettings(NodeData):
    """Settings of a trigger."""

    trigger_type: Literal["manual", "cron", "idle"] = "manual"
    cron: str | None = Field(default=None, max_length=200)
    idle_minutes: int | None = Field(default=None, ge=1, le=10_080)


def check(node: Node) -> Iterable[Complaint]:
    """A trigger by the clock says when."""
    settings = node.settings
    assert isinstance(settings, TriggerSettings)  # noqa: S101  (its type's)
    if settings.trigger_type == "cron":
        try:
            parse(settings.cron or "")
        except CronError as error:
            yield Complaint(
                code="cron", message=str(error), fix="Write five fields, as in “*/5 * * * *”.", key=("cron",)
            )
    if settings.trigger_type == "idle" and settings.idle_minutes is None:
        yield Complaint(code="idle", message="an idle trigger says no idleMinutes", fix="Add idleMinutes.")


def begin(moment: Moment) -> Finished:
    """What the run was started with; a declared output that was not given is empty."""
    given = {"timestamp": "", "type": "manual", "text": "", "params": {}} | dict(moment.run)
    return Finished({one.name: given.get(one.name) for one in moment.node.outputs} | given)


TYPE = NodeType(
    name="trigger",
    title="Trigger",
    settings=TriggerSettings,
    outputs=(port("timestamp", "string"), port("type", "string"), port("text", "string"), port("params", "json")),
    check=check,
    begin=begin,
    is_open=True,
)
