"""Write the turns of an imported session."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from executors_app.wire.replayed_texts import text_digest
from sessions_app.kernel.rules.rebuild import MessageRow, RunRow, SessionRebuild
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, RunState
from sessions_app.models import TaskSession, Turn
from sessions_app.portable.rows.session import IMPORTED_ERROR_CODE
from sessions_app.portable.snapshot_values import SnapshotValues
from sessions_app.recovery.rules.verification import answer_digest
from sessions_app.usage.models import add_imported_usage
from sessions_app.usage.rules.figures import TurnFigures


@dataclass
class _TurnTexts:
    """What a turn was asked for, and the agent's last message in it."""

    request: MessageRow | None = None
    answer: MessageRow | None = None


def write_runs(session: TaskSession, snapshot: SnapshotValues, rows: SessionRebuild) -> None:
    """Write the runs. If several are open, all but the newest become interrupted."""
    recorded = {values.id("id"): values for values in snapshot.rows("runs")}
    runs = sorted(rows.runs.values(), key=lambda run: run.started_at)
    for earlier in runs[:-1]:
        if earlier.state in OPEN_RUN_STATES:
            earlier.state, earlier.reason = RunState.INTERRUPTED, IMPORTED_ERROR_CODE
            earlier.ended_at = earlier.started_at
    prompt_ids = dict(session.prompts.values_list("message_id", "id"))
    texts = _texts_of_turns(runs, list(rows.messages.values()))
    turns = []
    for run in runs:
        values = recorded.get(run.id, SnapshotValues(None))
        turns.append(_turn(session, run, values, prompt_ids.get(run.message_id), texts[run.id]))
    Turn.objects.bulk_create(turns)
    add_imported_usage(session, turns, {run.id: TurnFigures.from_stored(run.counted) for run in runs})


def _texts_of_turns(runs: Sequence[RunRow], messages: Sequence[MessageRow]) -> dict[uuid.UUID, _TurnTexts]:
    """Return the texts of each turn whose beginning is in the log."""
    texts = {run.id: _TurnTexts() for run in runs}
    turns = {run.first_seq: run for run in runs if run.first_seq is not None}
    starts = sorted(turns)
    for message in sorted(messages, key=lambda row: row.seq):
        place = bisect_left(starts, message.seq) - 1
        if place < 0:
            continue
        turn = turns[starts[place]]
        if message.role == "user" and message.key == turn.message_id:
            texts[turn.id].request = message
        elif message.role == "agent" and (turn.last_seq is None or message.seq < turn.last_seq):
            texts[turn.id].answer = message
    return texts


def _turn(session: TaskSession, row: RunRow, values: SnapshotValues, prompt_id: int | None, texts: _TurnTexts) -> Turn:
    turn = Turn(
        id=row.id,
        session=session,
        message_id=row.message_id,
        state=row.state,
        has_process=values.flag("has_process") is not False,
        wait_kind=row.wait_kind or values.text("wait_kind", 16),
        wait_id=row.wait_id or values.text("wait_id", 128),
        wait_reason=values.text("wait_reason"),
        deadline_at=values.time("deadline_at"),
        waited=row.waited,
        reason=row.reason,
        since_seq=row.since_seq or values.number("since_seq"),
        started_at=values.time("started_at") or row.started_at,
        ended_at=row.ended_at,
        origin=row.origin,
        prompt_id=prompt_id,
        first_seq=row.first_seq,
        last_seq=row.last_seq,
        stop_reason=row.stop_reason,
        usage=row.usage,
        snapshot_before=row.snapshot_before,
        snapshot_after=row.snapshot_after,
    )
    if texts.request is not None:
        turn.first_seq = texts.request.seq - 1
        turn.request_digest = text_digest("".join(texts.request.pieces))
    if texts.answer is not None and row.state == RunState.COMPLETED:
        turn.answer_digest = answer_digest("".join(texts.answer.pieces))
    return turn
