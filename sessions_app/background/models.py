"""The last report of each session's background processes, and the session's policy for them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.conf import settings
from django.db import models

from executors_app.orm import ListField
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.background.events import BackgroundPolicyChanged
from sessions_app.background.rules.background_work import (
    BackgroundPolicy,
    EffectiveBackgroundPolicy,
    Report,
    effective_background_policy,
)
from sessions_app.kernel.models.session import TaskSession, choices
from sessions_app.kernel.transactions import SessionTransaction

POLICIES: Final = choices(BackgroundPolicy)
"""The choices of a policy."""


class BackgroundWork(TeamModel):
    """What agentctl last reported of the processes that turns of a session have left running.

    The session's metadata has the same commands, without what changes with every report: lists read only those, and so
    does release 1.0. That release may delete the session, so the database does not enforce the reference.
    """

    team_path = "session__task__team"

    session = models.OneToOneField(
        TaskSession, models.CASCADE, primary_key=True, related_name="background_work", db_constraint=False
    )
    policy = models.CharField(max_length=4, choices=POLICIES, blank=True, default="")
    """Empty: that of the agent profile, or else ``KANDEV_BACKGROUND_PROCESSES``."""
    launch_id = models.CharField(max_length=64, blank=True, default="")
    """The launch of the agent that they belong to."""
    processes = ListField(default=list, blank=True)
    """``[{command, since, cpu_seconds}]``, the oldest first."""
    count = models.PositiveIntegerField(default=0)
    """With those that are not listed."""
    is_complete = models.BooleanField(default=True)
    """False: the agent has more processes than are read."""
    cpu_seconds = models.FloatField(null=True, blank=True)
    """CPU time of all of them; None: unknown."""
    reported_at = models.DateTimeField(null=True, blank=True)

    class Meta(TeamModel.Meta):
        db_table = "background_work"
        verbose_name_plural = "background work"

    def __str__(self) -> str:
        return f"background work of {str(self.session_id)[:8]}"


def store_report(session: TaskSession, report: Report, reported_at: datetime) -> None:
    """Store a report; it replaces the one before."""
    BackgroundWork.objects.update_or_create(
        session=session,
        defaults={
            "launch_id": session.launch_id,
            "processes": list(report.processes),
            "count": report.count,
            "is_complete": report.is_complete,
            "cpu_seconds": report.cpu_seconds,
            "reported_at": reported_at,
        },
    )


def set_policy(transaction: SessionTransaction, policy: str) -> None:
    """Set the session's own policy (empty: none), and record the one that applies if that changes it."""
    row, _ = BackgroundWork.objects.get_or_create(session=transaction.session)
    if row.policy == policy:
        return
    BackgroundWork.objects.filter(session=transaction.session).update(policy=policy)
    applies = effective_policy(policy, transaction.session.agent_profile.background_policy)
    transaction.record_event(BackgroundPolicyChanged(policy=str(applies.policy), is_own=bool(policy)))


def effective_policy(session: str, profile: str) -> EffectiveBackgroundPolicy:
    """Return the policy that applies, from those that a session and its agent profile set; empty: none."""
    return effective_background_policy(session, profile, settings.KANDEV_BACKGROUND_PROCESSES)
