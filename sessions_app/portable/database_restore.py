"""Detect a database that was restored from an older copy while agents continued, and make it safe.

The portable record shows it: it has lines that the database lacks. What happened between the copy and now is unknown.
So that nothing happens twice, unfinished prompts are held, open intents dropped, keys revoked and sessions stopped.
What agents did since comes from the journals of those that still run; what no journal has is recorded as a gap.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from django.db.models import Q
from django.utils import timezone

from sessions_app.kernel import wakeups
from sessions_app.kernel.models.session import new_epoch
from sessions_app.kernel.rules.states import OPEN_PROMPT_STATES, TERMINAL_STATES, DesiredState
from sessions_app.models import IntentKind, SessionTransaction, TaskSession, WaitKey, session_transaction
from sessions_app.portable import export_cursor
from sessions_app.portable.record import LOG_SUFFIX, ExporterLock, SessionFiles, Tail, record_directory
from sessions_app.portable.writer import is_in_log
from sessions_app.stream.events.journal import JournalGap
from sessions_app.suspensions.models import settle_suspension
from sessions_app.waits.models import interrupt_external_wait, revoke_wait_keys

log = logging.getLogger(__name__)

RESTORE_REASON: Final = "database_restored"
"""Reason and outcome of what a restore has changed."""
_DROPPED_INTENTS: Final = (IntentKind.START, IntentKind.ANSWER, IntentKind.CANCEL)
"""Intents that may have been carried out already. A stop or close is kept: repeating it is harmless."""


class ExporterRunning(Exception):
    """A supervisor is running on this database. Stop Kandev first."""


@dataclass
class RestoreReport:
    """What a check for a restored database found and changed."""

    behind: dict[uuid.UUID, Tail] = field(default_factory=dict)
    """Sessions whose portable record has lines that their log lacks, with the record's end."""
    missing: list[uuid.UUID] = field(default_factory=list)
    """Sessions in the portable record that the database lacks."""
    stopped: int = 0
    held: int = 0


def detect_restore() -> RestoreReport | None:
    """Detect a restored database and make it safe; return None if there is nothing to do, which is cheap.

    Call it before anything is supervised. While another process exports, the database cannot have been restored.
    """
    try:
        if export_cursor.is_database_complete(export_cursor.read_cursor()):
            return None
        return _under_lock(certain=False)
    except ExporterRunning:
        return None
    except OSError as error:
        log.warning("the portable record cannot be read, so a restored database would go unnoticed: %s", error)
        return None


def make_restored_safe() -> RestoreReport:
    """Treat the database as restored, whatever the record shows. Raises ExporterRunning, OSError."""
    return _under_lock(certain=True)


def _under_lock(*, certain: bool) -> RestoreReport:
    lock = ExporterLock()
    if not lock.take():
        raise ExporterRunning(ExporterRunning.__doc__)
    try:
        found = _compare()
        if certain or found.behind or found.missing:
            _settle_all(found)
        # The cursor is written last. Until then the record still shows the restore, and settling again does no
        # harm.
        export_cursor.write_cursor(replace(export_cursor.cursor_at_end(), behind=tuple(found.behind)))
        return found
    finally:
        lock.release()


def _compare() -> RestoreReport:
    found = RestoreReport()
    for session_id in _recorded():
        tail = SessionFiles(record_directory(), session_id).tail()
        if not TaskSession.objects.filter(id=session_id).exists():
            found.missing.append(session_id)
        elif tail.event is not None and not is_in_log(session_id, tail.event):
            found.behind[session_id] = tail
    return found


def _recorded() -> Iterator[uuid.UUID]:
    for path in sorted(record_directory().glob(f"*{LOG_SUFFIX}")):
        try:
            yield uuid.UUID(path.name.removesuffix(LOG_SUFFIX))
        except ValueError:
            continue


def _settle_all(found: RestoreReport) -> None:
    TaskSession.objects.update(epoch=new_epoch())  # open pages reload from a snapshot
    for session_id in found.behind.keys() | _sessions_in_doubt():
        try:
            _settle(session_id, found)
        except Exception:  # one bad session never stops the others
            log.exception("session %s could not be made safe", session_id)
    wakeups.notify()
    log.warning(
        "the database was restored from an older copy: %d sessions lack lines of their log, %d were stopped, "
        "%d prompts are held; %d sessions of the record are not in it",
        len(found.behind),
        found.stopped,
        found.held,
        len(found.missing),
    )


def _sessions_in_doubt() -> set[uuid.UUID]:
    """Return the sessions that would continue automatically."""
    would_run = Q(desired_state=DesiredState.RUNNING) & ~Q(state__in=TERMINAL_STATES)
    has_prompts = Q(prompts__state__in=OPEN_PROMPT_STATES)
    has_intents = Q(intents__done_at=None, intents__isnull=False)
    sessions = TaskSession.objects.filter(would_run | has_prompts | has_intents)
    session_ids = set(sessions.values_list("id", flat=True))
    session_ids.update(WaitKey.objects.unsettled().values_list("session_id", flat=True))
    return session_ids


def _settle(session_id: uuid.UUID, found: RestoreReport) -> None:
    with session_transaction(session_id) as transaction:
        if session_id in found.behind:
            _record_gap(transaction, found.behind[session_id])
        if transaction.session.desired_state == DesiredState.RUNNING:
            found.stopped += 1
        transaction.set_fields(desired_state=DesiredState.STOPPED, stopped_by_user=True, next_restart_at=None)
        found.held += hold_doubtful(transaction)
        dropped = transaction.session.intents.filter(done_at=None, kind__in=_DROPPED_INTENTS)
        dropped.update(done_at=timezone.now(), outcome=RESTORE_REASON)
        # Its turn may have been continued since the copy was made.
        settle_suspension(transaction)
        interrupt_external_wait(transaction, RESTORE_REASON)
        revoke_wait_keys(transaction, RESTORE_REASON)


def hold_doubtful(transaction: SessionTransaction) -> int:
    """Hold every unfinished prompt, whose delivery is in doubt; return how many."""
    rows = list(transaction.session.prompts.select_for_update().filter(state__in=OPEN_PROMPT_STATES).order_by("id"))
    for row in rows:
        transaction.move_prompt(row, "doubt")
    return len(rows)


def _record_gap(transaction: SessionTransaction, tail: Tail) -> None:
    """Record the gap, once for each restore."""
    assert tail.event is not None  # noqa: S101 - a record without lines is never behind
    session = transaction.session
    once = f"restored:{session.id}:{tail.seq}:{tail.event.at.timestamp():.6f}"
    if session.events.filter(once=once).exists():
        return
    since = session.events.order_by("-seq").values_list("at", flat=True).first()
    gap = JournalGap(
        reason=RESTORE_REASON,
        since=since.isoformat() if since else None,
        lost_events=max(tail.seq - session.last_seq, 0),
    )
    transaction.record_event(gap, once)
