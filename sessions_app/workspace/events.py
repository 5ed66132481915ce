"""The workspace: its snapshots, and their transfer to the control plane."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from sessions_app.kernel.events.base import Event, with_reason
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild, text_value
from sessions_app.sessions.rules.situation_facts import Label

AFTER_TURN: Final = "turn_end"
"""Reason of the snapshot that is taken when a turn has ended."""


class WorkspaceChanged(
    Event,
    name="session.workspace.changed",
    recorded_by="ingest, when the working tree, HEAD or what is left out differs from the last snapshot",
):
    """The workspace has a new snapshot."""

    reason: str = Field(description="`turn_start`, `turn_end`, `shutdown`, `asked`, `restore` or `restored`")
    commit: str = Field(description="the snapshot that keeps it")
    dirty: bool
    branch: str = Field(description="empty if HEAD is detached")
    head: str = Field(description="the commit of HEAD, empty if the branch has none")
    left_out: list[Any] = Field(
        description="what the snapshot does not contain, as at most 20 pairs of `path` and `reason`"
    )
    left_out_count: int
    ignored_count: int | None = Field(
        default=None, description="files and directories that `.gitignore` names, which no snapshot contains"
    )

    @classmethod
    def rebuild(cls, rows: SessionRebuild, line: LogEvent) -> None:
        """Note the newest snapshot, which may be that after the last turn."""
        rows.snapshot = text_value(line.payload, "commit")[:64]
        turn = rows.newest_run()
        if turn is not None and turn.ended_at is not None and line.payload.get("reason") == AFTER_TURN:
            turn.snapshot_after = rows.snapshot


class WorkspaceTransferFailed(Event, audited=True):
    """The latest snapshot is not where it belongs."""

    commit: str = Field(description="the latest snapshot")
    error_code: str
    error_message: str


class WorkspaceDelayed(
    WorkspaceTransferFailed,
    name="session.workspace.delayed",
    recorded_by="the supervisor, when the snapshot could not be transferred to the control plane; it keeps trying",
):
    """The latest snapshot has not been transferred."""

    def timeline_label(self) -> Label:
        """Return the error."""
        return Label(with_reason("The latest snapshot could not be transferred yet", self.error_message), "ask")


class WorkspaceUnpublished(
    WorkspaceTransferFailed,
    name="session.workspace.unpublished",
    recorded_by="the supervisor, when the snapshot has arrived but may not be added to the team's repository; at most "
    "once for each run of the supervisor",
):
    """The latest snapshot is not in the team's repository."""

    def timeline_label(self) -> Label:
        """Return the error."""
        return Label(
            with_reason("The latest snapshot is saved, but not in the team's repository", self.error_message), "ask"
        )


class WorkspaceArrived(
    Event,
    name="session.workspace.arrived",
    recorded_by="the supervisor, when a delayed snapshot has arrived",
    audited=True,
    timeline=Label("The latest snapshot was transferred", "calm"),
):
    """A delayed snapshot has arrived."""

    commit: str
