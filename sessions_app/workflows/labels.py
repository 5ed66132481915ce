"""Labels of the states of runs and node runs, and of what started a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.workflows.models import NodeRun

RUN_STATE_LABELS: Final[Mapping[str, Label]] = {
    "queued": Label("Queued", "calm"),
    "running": Label("Running", "busy"),
    "succeeded": Label("Succeeded", "good"),
    "failed": Label("Failed", "bad"),
    "cancelled": Label("Cancelled", "off"),
}
NODE_STATE_LABELS: Final[Mapping[str, Label]] = {
    "running": Label("Running", "busy"),
    "succeeded": Label("Succeeded", "good"),
    "failed": Label("Failed", "bad"),
    "retried": Label("Sent back", "ask"),
    "skipped": Label("Skipped", "off"),
    "cancelled": Label("Cancelled", "off"),
}
_WAITING_LABELS: Final[Mapping[str, Label]] = {
    "user": Label("Waiting for you", "ask"),
    "agent": Label("Waiting for its agent", "calm"),
    "machine": Label("Waiting for its machine", "calm"),
}
TRIGGER_LABELS: Final[Mapping[str, str]] = {
    "manual": "by hand",
    "cron": "on schedule",
    "idle": "when the team was idle",
    "api": "through the API",
    "command": "on the command line",
}


def node_run_label(row: NodeRun) -> Label:
    """Return the label for the state of a node run."""
    if row.state == "running" and row.waiting_for in _WAITING_LABELS:
        return _WAITING_LABELS[row.waiting_for]
    return NODE_STATE_LABELS.get(row.state, Label(row.state, "off"))
