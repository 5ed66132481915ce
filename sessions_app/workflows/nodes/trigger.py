"""Where a run begins: by hand, by the clock, or when nothing else goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import Field

from sessions_app.workflows.language.cron import Cron, CronError, parse_cron
from sessions_app.workflows.language.graph import GraphNode, WorkflowGraph
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.nodes import NodeContext, NodeFinished, NodeType, SettingsIssue

BUILT_IN_OUTPUTS: Final = frozenset({"timestamp", "type", "params"})
"""What a trigger gives without being told; ``text`` is told as declared inputs are."""


class TriggerSettings(NodeData):
    """Settings of a trigger."""

    trigger_type: Literal["manual", "cron", "idle"] = "manual"
    cron: str | None = Field(default=None, max_length=200)
    idle_minutes: int | None = Field(default=None, ge=1, le=10_080)


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """A trigger by the clock says when."""
    settings = node.settings
    assert isinstance(settings, TriggerSettings)  # noqa: S101  (its type's)
    if settings.trigger_type == "cron":
        try:
            parse_cron(settings.cron or "")
        except CronError as error:
            yield SettingsIssue(
                code="cron", message=str(error), fix="Write five fields, as in “*/5 * * * *”.", key=("cron",)
            )
    if settings.trigger_type == "idle" and settings.idle_minutes is None:
        yield SettingsIssue(code="idle", message="an idle trigger says no idleMinutes", fix="Add idleMinutes.")


def begin_node(moment: NodeContext) -> NodeFinished:
    """What the run was started with; a declared output that was not given is empty."""
    given = {"timestamp": "", "type": "manual", "text": "", "params": {}} | dict(moment.run)
    return NodeFinished({one.name: given.get(one.name) for one in moment.node.outputs} | given)


@dataclass(frozen=True, slots=True)
class WorkflowTriggers:
    """Those of one workflow."""

    crons: tuple[Cron, ...] = ()
    idle: timedelta | None = None
    """The shortest time of its idle triggers."""

    def next_after(self, moment: datetime) -> datetime | None:
        """When the clock starts it next; None: never."""
        return min((at for cron in self.crons if (at := cron.next_after(moment)) is not None), default=None)


def find_triggers(workflow: WorkflowGraph | None) -> WorkflowTriggers:
    """The triggers of a workflow; none of a text that cannot be run."""
    nodes = workflow.root.nodes.values() if workflow else ()
    found = [node.settings for node in nodes if isinstance(node.settings, TriggerSettings)]
    crons = tuple(parse_cron(one.cron) for one in found if one.trigger_type == "cron" and one.cron)
    minutes = [one.idle_minutes for one in found if one.trigger_type == "idle" and one.idle_minutes]
    return WorkflowTriggers(crons, timedelta(minutes=min(minutes)) if minutes else None)


TYPES: Final = (
    NodeType(
        name="trigger",
        title="Trigger",
        settings=TriggerSettings,
        outputs=(
            make_port("timestamp", "string"),
            make_port("type", "string"),
            make_port("text", "string"),
            make_port("params", "json"),
        ),
        check=check_settings,
        begin=begin_node,
        is_open=True,
    ),
)
