"""What states of runs and nodes are called on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessions_app.models import NodeRun
from sessions_app.views.wording import Word

RUN_STATES: Final[Mapping[str, Word]] = {
    "queued": Word("Waits to begin", "calm"),
    "running": Word("Running", "busy"),
    "succeeded": Word("Succeeded", "good"),
    "failed": Word("Failed", "bad"),
    "cancelled": Word("Cancelled", "off"),
}
NODE_STATES: Final[Mapping[str, Word]] = {
    "running": Word("Running", "busy"),
    "succeeded": Word("Succeeded", "good"),
    "failed": Word("Failed", "bad"),
    "retried": Word("Sent back", "ask"),
    "skipped": Word("Skipped", "off"),
    "cancelled": Word("Cancelled", "off"),
}
_WAITS_FOR: Final[Mapping[str, Word]] = {
    "user": Word("Waiting for you", "ask"),
    "agent": Word("Waits for its agent", "calm"),
    "machine": Word("Waits for its machine", "calm"),
}
TRIGGERS: Final[Mapping[str, str]] = {
    "manual": "by hand",
    "cron": "by the clock",
    "idle": "when the team was idle",
    "api": "by the API",
    "command": "by the command line",
}


def node_word(row: NodeRun) -> Word:
    """The state of one time that a node ran."""
    if row.state == "running" and row.waiting_for in _WAITS_FOR:
        return _WAITS_FOR[row.waiting_for]
    return NODE_STATES.get(row.state, Word(row.state, "off"))
