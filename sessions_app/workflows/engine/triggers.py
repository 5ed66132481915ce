"""What starts a workflow by itself: its cron and idle triggers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sessions_app.workflows.language.cron import Cron, parse_cron
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.nodes.trigger import TriggerSettings


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
