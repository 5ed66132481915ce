"""Rebuilding sessions from a portable record: one transaction a session, and whatever is wrong is told (rule 37)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from django.db import DatabaseError, transaction

from sessions_app.domain.portable.rebuild import Rebuilt
from sessions_app.domain.states import SESSION, SessionState
from sessions_app.management.portable import ledger_in, rows_in
from sessions_app.management.portable.places import places_of
from sessions_app.models import Draft, TaskSession, refresh_task, waits, writing
from sessions_app.services.portable.reading import Finding, Numbered, Reader, records_in
from sessions_app.services.portable.record import LOG, SNAPSHOT
from sessions_app.services.portable.values import Values
from sessions_app.services.restored import hold_doubtful
from sessions_app.supervisor.ingest.interruptions import interrupt

log = logging.getLogger(__name__)

OTHERS: Final = uuid.UUID("5f0e2b52-9d0c-5b5e-8a53-0f6f4a7d9d11")
"""Namespace of the ids that sessions of other people's records get."""
INCOMPLETE: Final = "record_incomplete"
Progress = Callable[[int, int], None]


@dataclass
class Result:
    """What became of one session of a record."""

    stem: str
    session_id: uuid.UUID | None = None
    title: str = ""
    outcome: str = "skipped"
    """``imported``, ``there`` (already), ``skipped``."""
    events: int = 0
    messages: int = 0
    held: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hole:
    """Lines that a log should have and has not."""

    first: int
    last: int
    since: datetime | None
    """When the line before it was said."""
    line: int
    """The line of the file in front of which they are missing."""


def import_all(folder: Path, team: str, progress: Progress, *, dry_run: bool = False) -> list[Result]:
    """Import every session that is not there yet; raises OSError where the folder cannot be read."""
    stems = records_in(folder)
    results = []
    progress(0, len(stems))
    for done, stem in enumerate(stems, start=1):
        results.append(_import_safely(Reader(folder, stem), team, dry_run=dry_run))
        progress(done, len(stems))
    return results


def _import_safely(reader: Reader, team: str, *, dry_run: bool) -> Result:
    result = Result(reader.stem, findings=reader.findings)
    try:
        _import(reader, result, team, dry_run=dry_run)
    except (DatabaseError, ValueError, RecursionError) as error:
        log.debug("session %s could not be imported", reader.stem, exc_info=True)
        result.outcome = "skipped"
        reader.report(
            reader.stem, 0, f"the database refused it: {str(error).splitlines()[0] if str(error) else error!r}"
        )
    return result


def _import(reader: Reader, result: Result, team: str, *, dry_run: bool) -> None:
    snapshot = Values(reader.snapshot())
    result.session_id = session_id = _id_of(reader.stem)
    result.title = snapshot.text("title", 300)
    if snapshot and snapshot.text("id") != reader.stem:
        reader.report(reader.stem + SNAPSHOT, 0, f"names another session: {snapshot.text('id', 80)!r}")
        return
    if TaskSession.objects.filter(id=session_id).exists():
        result.outcome = "there"
        return
    rows = Rebuilt(session_id)
    lines = _replay(reader, rows)
    if not lines and not snapshot:
        reader.report(reader.stem, 0, "nothing of it can be read")
        return
    events, holes = [line.event for line in lines], _holes(lines, snapshot)
    result.notes += _report(reader, holes)
    with transaction.atomic():
        places = places_of(session_id, snapshot, team)
        last_seq = events[-1].seq if events else 0
        session = rows_in.write_session(session_id, snapshot, rows, places, last_seq)
        rows_in.write_events(session_id, events)
        rows_in.write_runs(session, snapshot, rows)
        rows_in.write_conversation(session, rows)
        for problem in ledger_in.write_prompts(session, snapshot, rows, last_seq):
            reader.report(reader.stem + SNAPSHOT, 0, problem)
        ledger_in.write_receipts(session, snapshot, rows)
        ledger_in.write_tokens(session, Values(reader.tokens()))
        result.held = _settle(session_id, holes)
        refresh_task(places.task.id)
        transaction.set_rollback(dry_run)
    result.outcome = "imported"
    result.notes += places.notes
    result.events, result.messages = len(events), len(rows.messages)


def _id_of(stem: str) -> uuid.UUID:
    """Ours, or the same one each time for a name that others gave."""
    try:
        found = uuid.UUID(stem)
    except ValueError:
        return uuid.uuid5(OTHERS, stem)
    return found if str(found) == stem else uuid.uuid5(OTHERS, stem)


def _replay(reader: Reader, rows: Rebuilt) -> list[Numbered]:
    lines = []
    for line in reader.log():
        try:
            lines.append(Numbered(line.line, rows.apply(line.event)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reader.report(reader.stem + LOG, line.line, f"makes no sense: {error}")
    return lines


def _holes(lines: Sequence[Numbered], snapshot: Values) -> list[Hole]:
    """The lines that are missing."""
    holes, before, since, place = [], 0, None, 0
    for line in lines:
        if line.event.seq > before + 1:
            holes.append(Hole(before + 1, line.event.seq - 1, since, line.line))
        before, since, place = line.event.seq, line.event.at, line.line
    if snapshot.number("last_seq") > before:
        holes.append(Hole(before + 1, snapshot.number("last_seq"), since, place))
    return holes


def _report(reader: Reader, holes: Sequence[Hole]) -> list[str]:
    """Say what is missing; a log whose beginning nobody has kept is none of those that were damaged."""
    notes = []
    for hole in holes:
        which = f"line {hole.first} is" if hole.first == hole.last else f"lines {hole.first} to {hole.last} are"
        if hole.first == 1 and hole.line:
            notes.append(f"the log begins late: {which} missing")
        else:
            reader.report(reader.stem + LOG, hole.line, f"{which} missing")
    return notes


def _settle(session_id: uuid.UUID, holes: Sequence[Hole]) -> int:
    """Nothing of it runs here: what was unfinished is said to be; how many prompts are held."""
    with writing(session_id) as draft:
        if holes:
            missing = sum(hole.last - hole.first + 1 for hole in holes)
            since = holes[-1].since.isoformat() if holes[-1].since else None
            draft.say("session.journal_gap", reason=INCOMPLETE, since=since, lost_events=missing)
        held = hold_doubtful(draft)
        interrupt(draft, rows_in.IMPORTED)
        waits.revoke(draft, rows_in.IMPORTED)
        _rest(draft)
    return held


def _rest(draft: Draft) -> None:
    busy = (SessionState.STARTING, SessionState.RUNNING)
    if draft.session.state in busy and SESSION.allows(draft.session.state, "stop"):
        draft.move("stop", reason=rows_in.IMPORTED)
