"""Merges and pushes of sessions' branches, as intents; each change records its event."""

from __future__ import annotations

import uuid
from typing import Self

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.orm import ListField
from sessions_app.accounts.team_scope import TeamModel, TeamQuerySet
from sessions_app.finish.events import FinishDone, FinishRefused, FinishUnknown
from sessions_app.finish.rules.finish import (
    MAX_CONFLICTS,
    ONCE_STATES,
    OPEN_STATES,
    FinishKind,
    FinishState,
    Refusal,
    Strategy,
)
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.transactions import session_transaction

_ERROR_LIMIT = 2000


class FinishIntentQuerySet(TeamQuerySet["FinishIntent"]):
    """A queryset of merges and pushes."""

    def pending(self) -> Self:
        """Return those that are to be carried out, also by another process than the one that began."""
        return self.filter(state__in=OPEN_STATES)


class FinishIntent(TeamModel):
    """A merge or push that a member has confirmed: what is moved, from which commit, and to what.

    Its key is what it was confirmed for: the target, the commit that it had, and the commit of the branch. Releases
    without this table may delete what it refers to, so the database does not enforce these references.
    """

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="finish_intents", db_constraint=False)
    kind = models.CharField(max_length=8, choices=choices(FinishKind))
    state = models.CharField(max_length=10, choices=choices(FinishState), default=FinishState.REQUESTED)
    strategy = models.CharField(max_length=8, choices=choices(Strategy), blank=True, default="")
    """Empty for a push."""
    remote = models.CharField(max_length=2048, blank=True, default="")
    """Where a push goes; empty for a merge."""
    branch_ref = models.CharField(max_length=512)
    """The session's branch, as a full ref."""
    branch_commit = models.CharField(max_length=64)
    """The commit that was reviewed; only that one is merged or pushed."""
    target_ref = models.CharField(max_length=512)
    """The branch that is moved, as a full ref."""
    expected_commit = models.CharField(max_length=64, blank=True, default="")
    """Where the target was when it was confirmed; empty: it did not exist."""
    message = models.TextField(blank=True, default="")
    """The message of the commit that is made; empty if none is."""
    author_name = models.CharField(max_length=200, blank=True, default="")
    author_email = models.CharField(max_length=320, blank=True, default="")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    """Also the date of the commits that it makes, so that a repeated merge makes the same commit."""
    attempts = models.PositiveIntegerField(default=0)
    """Attempts that failed because a repository could not be used, or with an error that nobody expected."""
    result_commit = models.CharField(max_length=64, blank=True, default="")
    """Where the target is moved to; known from before it is moved."""
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.CharField(max_length=_ERROR_LIMIT, blank=True, default="")
    """Why it was refused; while it is open, why the last attempt failed."""
    conflicts = ListField(default=list, blank=True)
    """The files in conflict, as text."""
    answer = models.TextField(blank=True, default="", db_default="")
    """What the server said to a push, such as where a pull request can be opened; bounded, without secrets."""
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = FinishIntentQuerySet.as_manager()  # type: ignore[misc]

    class Meta(TeamModel.Meta):
        db_table = "finish_intents"
        verbose_name, verbose_name_plural = "merge or push", "merges and pushes"
        ordering = ("created_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("session",),
                condition=models.Q(state__in=[str(state) for state in OPEN_STATES]),
                name="one_open_finish_per_session",
            ),
            models.UniqueConstraint(
                fields=("session", "kind", "remote", "target_ref", "expected_commit", "branch_commit"),
                condition=models.Q(state__in=[str(state) for state in ONCE_STATES]),
                name="one_finish_per_key",
            ),
        )
        indexes = (models.Index(fields=("session", "-created_at"), name="finish_of_session"),)

    def __str__(self) -> str:
        return f"{self.kind} {str(self.id)[:8]} ({self.state})"

    @property
    def is_open(self) -> bool:
        """Whether it is still to be carried out."""
        return self.state in OPEN_STATES


def record_plan(intent: FinishIntent, result_commit: str) -> bool:
    """Write what the target is moved to, before it is moved; return False if the intent is not open any more."""
    changed = FinishIntent.objects.pending().filter(id=intent.id)
    if not changed.update(state=FinishState.APPLYING, result_commit=result_commit):
        return False
    intent.state, intent.result_commit = FinishState.APPLYING, result_commit
    return True


def record_failed_attempt(intent: FinishIntent, code: str, message: str) -> None:
    """Count a failed attempt; it is tried again."""
    FinishIntent.objects.pending().filter(id=intent.id).update(
        attempts=models.F("attempts") + 1, error_code=code, error_message=message[:_ERROR_LIMIT]
    )


def settle_done(intent: FinishIntent) -> bool:
    """End an intent whose target has its commit; return False if it has ended already."""
    event = FinishDone(
        intent_id=str(intent.id),
        kind=str(intent.kind),
        target=intent.target_ref,
        branch_commit=intent.branch_commit,
        result_commit=intent.result_commit,
    )
    with session_transaction(intent.session_id) as transaction:
        if not _end(intent, FinishState.DONE, error_code="", error_message="", result_commit=intent.result_commit):
            return False
        transaction.record_event(event)
        crash_points.reached("finish.end_written", intent.session_id)
    return True


def settle_refused(intent: FinishIntent, refusal: Refusal) -> bool:
    """End an intent that cannot be carried out; return False if it has ended already."""
    message, conflicts = refusal.message[:_ERROR_LIMIT], list(refusal.conflicts[:MAX_CONFLICTS])
    event = FinishRefused(
        intent_id=str(intent.id),
        kind=str(intent.kind),
        target=intent.target_ref,
        error_code=refusal.code,
        error_message=message,
        conflicts=conflicts,
    )
    with session_transaction(intent.session_id) as transaction:
        values = {"error_code": refusal.code, "error_message": message, "conflicts": conflicts, "result_commit": ""}
        if not _end(intent, FinishState.REFUSED, **values):
            return False
        transaction.record_event(event)
        crash_points.reached("finish.end_written", intent.session_id)
    return True


def settle_unknown(intent: FinishIntent, code: str, message: str) -> bool:
    """End an intent of which nobody can find out whether it has happened; return False if it has ended already."""
    message = message[:_ERROR_LIMIT]
    event = FinishUnknown(
        intent_id=str(intent.id),
        kind=str(intent.kind),
        target=intent.target_ref,
        error_code=code,
        error_message=message,
    )
    with session_transaction(intent.session_id) as transaction:
        if not _end(intent, FinishState.UNKNOWN, error_code=code, error_message=message):
            return False
        transaction.record_event(event)
        crash_points.reached("finish.end_written", intent.session_id)
    return True


def _end(intent: FinishIntent, state: FinishState, **values: object) -> bool:
    """End an intent with one guarded UPDATE: of two processes that carried it out, one records the end."""
    changed = FinishIntent.objects.pending().filter(id=intent.id)
    return bool(changed.update(state=state, ended_at=timezone.now(), **values))
