"""What journal lines about the workspace change: a new snapshot, and warnings."""

from __future__ import annotations

from sessions_app.kernel.bulk import update_row
from sessions_app.models import SessionTransaction
from sessions_app.stream.conversation import JournalLine, JournalUpdate
from sessions_app.workspace.events import AFTER_TURN, WorkspaceChanged
from sessions_app.workspace.services import workspace_notes


def record_snapshot(update: JournalUpdate, line: JournalLine) -> None:
    """Record a new snapshot of the working tree, which ``WorkspaceSync`` then transfers to the archive."""
    transaction, commit = update.transaction, str(line.get("commit", ""))
    _announce_snapshot(transaction, commit)
    turn = transaction.newest_run
    if turn is not None and turn.ended_at is not None and line.get("reason") == AFTER_TURN:
        transaction.note_turn(turn, snapshot_after=commit[:64])
    about = workspace_notes.record_snapshot(transaction, line)
    transaction.record_event(
        WorkspaceChanged(
            reason=str(line.get("reason", "")),
            commit=commit,
            dirty=bool(line.get("dirty")),
            branch=about["branch"],
            head=about["head"],
            left_out=about["left_out"],
            left_out_count=about["left_out_count"],
            ignored_count=about["ignored_count"],
        )
    )


def record_warning(update: JournalUpdate, line: JournalLine) -> None:
    """Show a warning of agentctl or of the agent; other lines of its log are only in the journal."""
    workspace_notes.record_warning(update.transaction, line)


def _announce_snapshot(transaction: SessionTransaction, commit: str) -> None:
    # In the line's transaction: after a crash, these columns still show that the snapshot has not arrived.
    execution = transaction.execution
    if execution is None or not commit:
        return
    was_due = execution.snapshot_announced != execution.snapshot_arrived
    execution.snapshot_announced = commit[:64]  # hostile: no longer than the column
    if execution.snapshot_announced == execution.snapshot_arrived:
        execution.snapshot_due_since = None
    elif not was_due:
        execution.snapshot_due_since = transaction.at
    update_row(execution, ("snapshot_announced", "snapshot_due_since"))
