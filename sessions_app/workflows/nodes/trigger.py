"""The trigger node type, where a run begins: started by hand, on a schedule, or when the team is idle."""

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
"""Outputs that Kandev itself fills. ``text`` is not one of them: users pass it, like declared inputs."""


class TriggerSettings(NodeData):
    """Settings of a trigger."""

    trigger_type: Literal["manual", "cron", "idle"] = "manual"
    cron: str | None = Field(default=None, max_length=200)
    idle_minutes: int | None = Field(default=None, ge=1, le=10_080)


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check the cron expression, and the time of an idle trigger."""
    settings = node.settings
    assert isinstance(settings, TriggerSettings)  # noqa: S101  (the settings class of the type)
    if settings.trigger_type == "cron":
        try:
            parse_cron(settings.cron or "")
        except CronError as error:
            yield SettingsIssue(
                code="cron",
                message=str(error),
                fix="Write five fields, as in “*/5 * * * *” (every five minutes).",
                key=("cron",),
            )
    if settings.trigger_type == "idle" and settings.idle_minutes is None:
        yield SettingsIssue(code="idle", message="the idle trigger has no idleMinutes", fix="Add idleMinutes.")


def begin_node(context: NodeContext) -> NodeFinished:
    """Return the inputs of the run as outputs; a declared output without a value is None."""
    given = {"timestamp": "", "type": "manual", "text": "", "params": {}} | dict(context.run)
    return NodeFinished({port.name: given.get(port.name) for port in context.node.outputs} | given)


@dataclass(frozen=True, slots=True)
class WorkflowTriggers:
    """The cron and idle triggers of one workflow, which start it without a user."""

    crons: tuple[Cron, ...] = ()
    idle: timedelta | None = None
    """The shortest time of its idle triggers; None without one."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return when a cron trigger is due next; None if never."""
        return min((at for cron in self.crons if (at := cron.next_after(moment)) is not None), default=None)


def find_triggers(workflow: WorkflowGraph | None) -> WorkflowTriggers:
    """Return the triggers of a workflow; None as the workflow gives no triggers."""
    nodes = workflow.root.nodes.values() if workflow else ()
    found = [node.settings for node in nodes if isinstance(node.settings, TriggerSettings)]
    crons = tuple(parse_cron(trigger.cron) for trigger in found if trigger.trigger_type == "cron" and trigger.cron)
    minutes = [trigger.idle_minutes for trigger in found if trigger.trigger_type == "idle" and trigger.idle_minutes]
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
