"""Journal lines as agentctl writes them, and helpers that write them into the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from executors_app.wire.protocol import JournalKind
from sessions_app.models import Lease, TaskSession
from sessions_app.stream.ingest.batches import IngestResult, ingest_batch
from tests.supervisor.rows import MINE

Line = dict[str, Any]


class Journal:
    """Numbers its lines without gaps, as agentctl does."""

    def __init__(self, epoch: str = "epoch-1"):
        self.epoch, self.seq = epoch, 0

    def line(self, kind: str, **body: Any) -> Line:
        """Return the next line."""
        self.seq += 1
        return {"seq": self.seq, "epoch": self.epoch, "ts": 1_750_000_000.0 + self.seq, "kind": str(kind), **body}

    def accepted(self, message_id: str, text: str = "do it", prompt_kind: str = "user") -> Line:
        """Return the line with which agentctl accepts a prompt."""
        return self.line(JournalKind.PROMPT_ACCEPTED, message_id=message_id, text=text, prompt_kind=prompt_kind)

    def turn_begins(self, message_id: str, text: str = "do it") -> list[Line]:
        """Return the lines with which a turn begins."""
        return [self.accepted(message_id, text), self.line(JournalKind.PROMPT_DELIVERED, message_id=message_id)]

    def says(self, *chunks: str) -> list[Line]:
        """Return lines of agent text."""
        return [self.line(JournalKind.MESSAGE_AGENT, text=chunk) for chunk in chunks]

    def tool(self, tool_call_id: str, **values: Any) -> Line:
        """Return a line of a tool call."""
        return self.line(JournalKind.TOOL_CALL, tool_call_id=tool_call_id, **{"status": "in_progress", **values})

    def requests_permission(self, permission_id: str) -> Line:
        """Return the line of a permission request."""
        options = [{"option_id": "yes", "name": "Yes", "kind": "allow_once"}, {"option_id": "no", "name": "No"}]
        return self.line(
            JournalKind.PERMISSION_REQUESTED, permission_id=permission_id, tool_call={"title": "rm"}, options=options
        )

    def completes(self, message_id: str) -> Line:
        """Return the line of a completed turn."""
        return self.line(JournalKind.TURN_COMPLETED, message_id=message_id, stop_reason="end_turn")

    def snapshot(self, commit: str, reason: str) -> Line:
        """Return the line of a new snapshot of the workspace."""
        return self.line(JournalKind.WORKSPACE_SNAPSHOT, commit=commit, reason=reason, dirty=True)

    def exits(self, message_id: str | None = None, *, expected: bool = False) -> Line:
        """Return the line with which the agent process ends."""
        return self.line(JournalKind.AGENT_EXITED, exit_code=1, expected=expected, message_id=message_id)


def ingest(
    session: TaskSession,
    lines: Sequence[Line],
    *,
    lease: Lease | None = MINE,
    token: Mapping[str, Any] | None = None,
) -> IngestResult:
    """Ingest one batch of lines."""
    return ingest_batch(session.id, lease, lines, token)
