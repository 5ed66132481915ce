"""The suspensions of sessions, present and past; each change records its event."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime

from django.conf import settings
from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from executors_app.agents.limit_resets import LimitReset
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.rules.states import TurnOrigin
from sessions_app.kernel.transactions import SessionTransaction
from sessions_app.prompts.models import LIMIT_PREFIX, Prompt
from sessions_app.suspensions.events import ContinuationWithdrawn, Suspended, SuspensionEnded
from sessions_app.suspensions.rules.suspension import (
    LONGEST_HOLD,
    LONGEST_OWN_WAIT,
    MOST_TRIES,
    Continuation,
    SuspensionEnd,
    is_outage,
    try_delay,
    wake_time,
)
from sessions_app.turns.models import Turn

MESSAGE_LIMIT = 1000
"""Characters of what the agent said that are kept."""


class Suspension(TeamModel):
    """A time in which nothing is sent to a session's agent: its limit is reached, or its provider is down.

    Releases without this table may delete what it refers to, so the database does not enforce these references.
    """

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="suspensions", db_constraint=False)
    run = models.ForeignKey(Turn, models.CASCADE, related_name="suspensions", db_constraint=False)
    """The turn that the limit has ended."""
    reason = models.CharField(max_length=64)
    """The code of a limit, or the ``ProviderTrouble`` of an outage."""
    message = models.CharField(max_length=MESSAGE_LIMIT, blank=True, default="")
    """What the agent said."""
    resets_at = models.DateTimeField(null=True, blank=True)
    """When the limit ends; None: the agent does not say so."""
    zone = models.CharField(max_length=64, blank=True, default="")
    """The time zone that the agent named; empty: none, so that ``resets_at`` is that of the control plane's zone."""
    wakes_at = models.DateTimeField(null=True, blank=True)
    """When the session goes on by itself: a little later than the limit ends, or the next try. None: never."""
    windows = models.PositiveIntegerField(default=0)
    """How many suspensions in a row, all limits or all outages, this work was continued after by itself before."""
    has_worked = models.BooleanField(default=True)
    """Whether the agent had used a tool in the turn."""
    waits_by_itself = models.BooleanField(default=False, db_default=False)
    """Whether the agent has said that it waits, and goes on by itself: then it does not sleep. Not once it is gone."""
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    """When somebody decided that the turn is not continued; None: the policy decides."""
    began_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    """Who did not wait for its end."""
    end = models.CharField(max_length=12, choices=choices(SuspensionEnd), blank=True, default="")
    """How it ended; empty while it lasts."""

    class Meta(TeamModel.Meta):
        db_table = "session_suspensions"
        ordering = ("began_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("session",), condition=models.Q(ended_at=None), name="one_open_suspension_per_session"
            ),
        )
        indexes = (
            models.Index(fields=("wakes_at",), condition=models.Q(ended_at=None), name="suspension_due"),
            models.Index(fields=("session", "-began_at"), name="suspension_of_session"),
        )

    def __str__(self) -> str:
        return f"suspension {str(self.id)[:8]} ({self.end or 'open'})"

    @property
    def holds_prompts(self) -> bool:
        """Whether nothing is sent to the agent now. Without a known end, a prompt is an attempt."""
        if self.ended_at is not None or self.wakes_at is None:
            return False
        now = timezone.now()
        return now < self.wakes_at <= now + LONGEST_HOLD


def open_suspension(session_id: uuid.UUID) -> Suspension | None:
    """Return the suspension of a session that lasts; None if it is not suspended."""
    return Suspension.objects.filter(session_id=session_id, ended_at=None).first()


def suspensions_that_hold() -> models.QuerySet[Suspension]:
    """Return the suspensions during which nothing is sent to the agent, so that it need not run."""
    # The clock of the database, because the sweep compiles this query once.
    return Suspension.objects.filter(ended_at=None, wakes_at__gt=Now(), wakes_at__lte=Now() + LONGEST_HOLD)


def agents_that_wait() -> models.QuerySet[Suspension]:
    """Return the suspensions during which the agent waits by itself, so that it does not sleep; at most for a day."""
    own = Suspension.objects.filter(ended_at=None, waits_by_itself=True)
    return own.filter(models.Q(wakes_at__isnull=False) | models.Q(began_at__gt=timezone.now() - LONGEST_OWN_WAIT))


def due_suspensions() -> models.QuerySet[Suspension]:
    """Return the suspensions whose sessions go on now, the earliest first."""
    now = timezone.now()
    is_due = models.Q(wakes_at__lte=now) | models.Q(wakes_at__gt=now + LONGEST_HOLD)
    return Suspension.objects.filter(is_due, ended_at=None).order_by("wakes_at")


def begin_suspension(
    transaction: SessionTransaction,
    run: Turn,
    reset: LimitReset | None,
    *,
    reason: str,
    message: str,
    has_worked: bool,
    waits_by_itself: bool = False,
) -> Suspension:
    """Suspend a session whose turn a limit has ended; return the suspension. One that lasts ends as repeated.

    ``run`` is that turn, or one that the agent began itself and in which it has only reported the limit.
    """
    earlier = open_suspension(transaction.session.id) or _continued_before(transaction.session, run, reason)
    if earlier is not None and earlier.ended_at is None:
        end_suspension(transaction, earlier, SuspensionEnd.REPEATED, Continuation.NOTHING)
    windows, withdrawn_at = 0, None
    if earlier is not None and earlier.end == SuspensionEnd.RESET:
        windows = earlier.windows + 1
    elif earlier is not None and run.origin == TurnOrigin.AGENT:
        # The agent has reported the limit again, unasked: what the limit has ended is still that turn.
        run, windows, withdrawn_at = earlier.run, earlier.windows, earlier.withdrawn_at
        has_worked = earlier.has_worked
    row = Suspension.objects.create(
        session=transaction.session,
        run=run,
        reason=reason,
        message=message.strip()[:MESSAGE_LIMIT],
        resets_at=reset.at if reset else None,
        zone=reset.zone if reset else "",
        wakes_at=_wake_time(transaction.at, reset, reason, windows),
        windows=windows,
        has_worked=has_worked,
        waits_by_itself=waits_by_itself,
        withdrawn_at=withdrawn_at,
        began_at=transaction.at,
    )
    transaction.record_event(
        Suspended(
            suspension_id=str(row.id),
            run_id=str(run.id),
            reason=reason,
            until=row.resets_at.astimezone(UTC).isoformat() if row.resets_at else None,
            zone=row.zone,
            message=row.message,
            tries_at=row.wakes_at.astimezone(UTC).isoformat() if row.wakes_at and is_outage(reason) else None,
        )
    )
    return row


def allowed_windows(reason: str) -> int:
    """Return how many suspensions for this reason in a row work is continued after by itself."""
    if not is_outage(reason):
        return int(settings.KANDEV_CONTINUE_AT_RESET)
    return MOST_TRIES if settings.KANDEV_TURN_RETRIES else 0


def _wake_time(now: datetime, reset: LimitReset | None, reason: str, windows: int) -> datetime | None:
    """Return when the session goes on by itself: when the limit ends, or at the next try during an outage."""
    if is_outage(reason) and windows >= allowed_windows(reason):
        return None
    if is_outage(reason):
        # Not before the delay: "try again in 1 second" would use up all tries within minutes.
        earliest = now + try_delay(windows)
        ends_at = max(earliest, reset.at) if reset is not None else earliest
    elif reset is not None:
        ends_at = reset.at
    else:
        return None
    suspended = Suspension.objects.filter(ended_at=None).count()
    return wake_time(ends_at, suspended, random.random())  # noqa: S311  (no secret)


def _continued_before(session: TaskSession, run: Turn, reason: str) -> Suspension | None:
    """Return the suspension at whose end the turn's work was continued by itself; None if a person has asked for it.

    Retries and continue prompts that followed it belong to the same work. Limits and outages are counted apart.
    """
    prompt = Prompt.objects.filter(session=session, message_id=run.message_id).first()
    while prompt is not None and prompt.by_id is None:
        suspension_id = prompt.message_id.removeprefix(LIMIT_PREFIX)
        if suspension_id != prompt.message_id:
            found = Suspension.objects.filter(session=session, id=suspension_id, end=SuspensionEnd.RESET).first()
            if found is None or is_outage(found.reason) == is_outage(reason):
                return found
        prompt = prompt.predecessor
    return None


def withdraw_continuation(transaction: SessionTransaction, by: models.Model | None) -> bool:
    """Decide that the turn of a suspended session is not continued; return False if that is so already.

    The suspension goes on: what else is queued waits for the end of the limit.
    """
    row = open_suspension(transaction.session.id)
    if row is None:
        return False
    changed = Suspension.objects.filter(id=row.id, withdrawn_at=None).update(withdrawn_at=transaction.at)
    if not changed:
        return False
    transaction.record_event(ContinuationWithdrawn(suspension_id=str(row.id), by=_name_of(by)))
    return True


def settle_suspension(transaction: SessionTransaction) -> None:
    """End the suspension of a session, if it has one, without continuing anything."""
    row = open_suspension(transaction.session.id)
    if row is not None:
        end_suspension(transaction, row, SuspensionEnd.OBSOLETE, Continuation.NOTHING)


def settle_own_wait(transaction: SessionTransaction) -> None:
    """End the suspension of an agent that waits by itself, because it has worked again."""
    row = open_suspension(transaction.session.id)
    if row is not None and row.waits_by_itself:
        end_suspension(transaction, row, SuspensionEnd.OBSOLETE, Continuation.NOTHING)


def forget_own_wait(session: TaskSession) -> None:
    """Count no longer on an agent that waited by itself, because its process is gone: no other one goes on for it."""
    Suspension.objects.filter(session=session, ended_at=None, waits_by_itself=True).update(waits_by_itself=False)


def end_suspension(
    transaction: SessionTransaction,
    row: Suspension,
    end: SuspensionEnd,
    kind: Continuation,
    by: models.Model | None = None,
) -> bool:
    """End a suspension, and record what happens to its turn; return False if it has ended already."""
    # One guarded UPDATE decides: of a job and a person who let it go on at once, one does.
    changed = Suspension.objects.filter(id=row.id, ended_at=None).update(ended_at=timezone.now(), end=end, ended_by=by)
    if not changed:
        return False
    transaction.record_event(
        SuspensionEnded(suspension_id=str(row.id), reason=str(end), continuation=str(kind), by=_name_of(by))
    )
    return True


def _name_of(user: models.Model | None) -> str | None:
    return user.get_username() if user is not None else None  # type: ignore[attr-defined]
