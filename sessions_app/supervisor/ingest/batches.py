"""Journal lines into the database: events, messages, states and the cursor in one transaction (design 6).

The cursor is what makes it exactly once; the lease and the old cursor guard it (rule 19).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.utils import timezone

from executors_app import crash_points
from executors_app.models import ExecutorRunning
from sessions_app.models import Draft, Lease, LeaseLost, update_rows, writing
from sessions_app.supervisor.ingest.fold import UNWRITABLE, Fold, Line
from sessions_app.supervisor.ingest.reading import Reading
from sessions_app.supervisor.start.token_keeping import take_told

log = logging.getLogger(__name__)
NOT_THE_LINES = (LeaseLost, ExecutorRunning.DoesNotExist, OperationalError, InterfaceError, MemoryError)
"""What fails a batch whatever its lines are."""


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
    A line that cannot be written is passed over, and the log says so: the others count.
    """
    write = partial(_write, session_id, lease, token=token, alive=alive)
    try:
        return write(lines)
    except NOT_THE_LINES:
        raise
    except Exception as error:
        if not lines:
            raise
        if len(lines) == 1:
            log.warning("session %s: a line of its journal cannot be written", session_id, exc_info=error)
            header = {name: lines[0][name] for name in ("seq", "epoch", "ts")}
            return write([{**header, "kind": UNWRITABLE, "was": lines[0]["kind"]}])
    half = len(lines) // 2
    first = ingest(session_id, lease, lines[:half], token, alive=alive)
    rest = ingest(session_id, lease, lines[half:], token, alive=alive)
    return Ingested(rest.epoch, rest.seq, first.agent_gone or rest.agent_gone)


def _write(
    session_id: uuid.UUID,
    lease: Lease | None,
    lines: Sequence[Line],
    *,
    token: Mapping[str, Any] | None,
    alive: bool,
) -> Ingested:
    with writing(session_id, lease) as draft:
        execution = draft.execution
        if execution is None:
            raise ExecutorRunning.DoesNotExist(f"session {session_id} has no execution")
        reading = Reading(execution.journal_epoch, execution.journal_seq).take(lines)
        _say_what_is_missing(draft, execution, reading)
        fold = Fold(draft, reading.new)
        for line in reading.new:
            fold.apply(line)
        fold.conversation.seal()
        draft.at = timezone.now()
        if alive:
            execution.last_seen_at = timezone.now()
        elif reading.new:
            execution.last_seen_at = datetime.fromtimestamp(float(reading.new[-1]["ts"]), UTC)
        execution.journal_epoch, execution.journal_seq = reading.epoch, reading.seq
        _keep_cursor(draft, execution, token)
        crash_points.reached("supervisor.ingest_before_commit", session_id)
        transaction.on_commit(lambda: crash_points.reached("supervisor.ingest_after_commit", session_id))
    return Ingested(execution.journal_epoch, execution.journal_seq, fold.agent_gone)


def _say_what_is_missing(draft: Draft, execution: ExecutorRunning, reading: Reading) -> None:
    """Gaps and lines that were passed over, before anything else (rule 20)."""
    since = execution.last_seen_at
    for reason in reading.gaps:
        draft.say("session.journal_gap", reason=reason, since=since.isoformat() if since else None)
    if reading.skipped:
        (reason, line), count = reading.skipped[0], len(reading.skipped)
        log.warning("session %s: %d lines of its journal are passed over: %s", draft.session.id, count, reason)
        draft.say("session.journal_skipped", reason=reason, count=count, seq=line.get("seq"), kind=line["kind"])


CURSOR = ("journal_epoch", "journal_seq", "last_seen_at", "updated_at")


def _keep_cursor(draft: Draft, execution: ExecutorRunning, token: Mapping[str, Any] | None) -> None:
    execution.updated_at = timezone.now()
    update_rows(ExecutorRunning, CURSOR, [(*map(partial(getattr, execution), CURSOR), execution.id)])
    if told := take_told(draft, execution, token):
        execution.save(update_fields=told)
