"""Journal lines into the database: events, messages, states and the cursor in one transaction (design 6).

The cursor is what makes it exactly once; the lease and the old cursor guard it (rule 19).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from executors_app import crash_points
from executors_app.models import ExecutorRunning
from sessions_app.models import Draft, Lease, writing
from sessions_app.supervisor.fold import Fold, Line


@dataclass(frozen=True, slots=True)
class Ingested:
    """Where the log stands after a batch."""

    epoch: str
    seq: int
    agent_gone: bool = False


def ingest(
    session_id: uuid.UUID,
    lease: Lease | None,
    lines: Sequence[Line],
    token: Mapping[str, Any] | None = None,
    *,
    alive: bool = True,
) -> Ingested:
    """Write a batch of journal lines; raises LeaseLost. What is behind the cursor already changes nothing.

    ``token`` is the answer of ``GET /agent/session``, where a line of the batch tells of a change (rule 22).
    ``alive`` is False for what a dead agentctl has left: it was seen when it wrote, not now.
    """
    with writing(session_id, lease) as draft:
        execution = draft.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {session_id} has no execution")
        new = _new_lines(draft, execution, lines)
        fold = Fold(draft)
        for line in new:
            fold.apply(line)
        fold.conversation.seal()
        draft.at = timezone.now()
        if alive:
            execution.last_seen_at = timezone.now()
        elif new:
            execution.last_seen_at = datetime.fromtimestamp(float(new[-1]["ts"]), UTC)
        _keep_cursor(execution, token)
        crash_points.reached("supervisor.ingest_before_commit")
    crash_points.reached("supervisor.ingest_after_commit")
    return Ingested(execution.journal_epoch, execution.journal_seq, fold.agent_gone)


def _new_lines(draft: Draft, execution: ExecutorRunning, lines: Sequence[Line]) -> list[Line]:
    """The lines behind the cursor; a new epoch or a hole is said before anything else (rule 20)."""
    new: list[Line] = []
    epoch, seq = execution.journal_epoch, execution.journal_seq
    for line in lines:
        if line["epoch"] != epoch:
            if epoch:
                _say_gap(draft, execution, "new_epoch")
            # what an earlier epoch hides is said already; a first one that begins late has a hole
            epoch, seq = str(line["epoch"]), int(line["seq"]) - 1 if epoch else 0
        if line["seq"] <= seq:
            continue
        if line["seq"] > seq + 1:
            _say_gap(draft, execution, "lines_missing")
        seq = int(line["seq"])
        new.append(line)
    execution.journal_epoch, execution.journal_seq = epoch, seq
    return new


def _say_gap(draft: Draft, execution: ExecutorRunning, reason: str) -> None:
    since = execution.last_seen_at
    draft.say("session.journal_gap", reason=reason, since=since.isoformat() if since else None)


def _keep_cursor(execution: ExecutorRunning, token: Mapping[str, Any] | None) -> None:
    values = ["journal_epoch", "journal_seq", "last_seen_at", "updated_at"]
    if token and token.get("resume_token") not in (None, "", execution.rejected_resume_token):
        execution.resume_token = str(token["resume_token"])
        execution.last_message_uuid = str(token.get("last_message_uuid") or "")
        values += ["resume_token", "last_message_uuid"]
    execution.save(update_fields=values)
