"""The ledger of what turns have used: one row for each turn, which outlives its session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from django.conf import settings
from django.db import models
from django.utils import timezone

from executors_app.agents import UsageReport
from executors_app.orm import ObjectField
from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import TaskSession
from sessions_app.recovery.models import ContinuityReceipt
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.turns.models import Turn
from sessions_app.usage.rules.figures import FIRST_TURN, Earlier, TurnFigures, last_figures, turn_figures

_NEW_CONVERSATION: Final = (ReceiptKind.INJECTED, ReceiptKind.FRESH)
"""Receipts of starts after which the agent has another conversation."""


class TurnUsage(TeamModel):
    """What an agent reported to have used in one turn. The row stays when the session is deleted.

    A figure that is null is not known. Releases without this table delete users and teams without looking at it, so
    the database does not enforce these references.
    """

    turn_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    """Of the turn, so that each turn is counted once, also after another import of its session."""
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="+", db_constraint=False)
    task_id = models.UUIDField()
    session_id = models.UUIDField()
    member = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    """Who sent the prompt; of a turn that nobody prompted, the session's owner."""
    agent_type = models.CharField(max_length=64)
    ended_at = models.DateTimeField()
    day = models.DateField()
    """On which it ended, in the control plane's time zone."""
    tokens = models.BigIntegerField(null=True, blank=True)
    """All tokens, with those of a cache."""
    input_tokens = models.BigIntegerField(null=True, blank=True)
    output_tokens = models.BigIntegerField(null=True, blank=True)
    cached_tokens = models.BigIntegerField(null=True, blank=True)
    cost = models.FloatField(null=True, blank=True)
    """What the agent says that the turn has cost."""
    currency = models.CharField(max_length=8, blank=True, default="")
    launch_id = models.CharField(max_length=64, blank=True, default="")
    """The start of the agent that reported it."""
    counters = ObjectField(default=dict, blank=True, editable=False)
    """What the agent had last reported when the turn ended: the next turn is what it adds."""

    class Meta(TeamModel.Meta):
        db_table = "turn_usage"
        ordering = ("ended_at", "turn_id")
        indexes = (
            models.Index(fields=("team", "day"), name="usage_of_team_and_day"),
            models.Index(fields=("session_id", "ended_at"), name="usage_of_session"),
            models.Index(fields=("task_id",), name="usage_of_task"),
        )

    def __str__(self) -> str:
        return f"usage of turn {str(self.turn_id)[:8]}"


def local_day(moment: datetime) -> date:
    """Return the day of a moment in the control plane's time zone, in which days of usage and budgets begin."""
    return timezone.localtime(moment, timezone.get_default_timezone()).date()


def record_turn_usage(session: TaskSession, turn: Turn, at: datetime) -> TurnFigures:
    """Write down what a turn that has just ended has used alone, and return it."""
    of_turn = Turn.objects.filter(id=turn.id).values_list(
        "session__task__team_id", "session__agent_profile__agent_type", "prompt__by_id"
    )
    team_id, name, sender_id = of_turn.get()
    reported = dict(turn.usage or {})
    before = TurnUsage.objects.filter(session_id=session.id).order_by("-ended_at").first()
    figures = turn_figures(reported, _declared(name), _earlier(session, turn, before))
    row = _row(session, turn, at, figures, team_id=team_id, member_id=sender_id or session.owner_id, agent_type=name)
    row.launch_id, row.counters = session.launch_id, last_figures(reported, before.counters if before else {})
    _write([row])
    return figures


def add_imported_usage(session: TaskSession, turns: Sequence[Turn], figures: Mapping[uuid.UUID, TurnFigures]) -> None:
    """Write down what the turns of an imported session have used; those that are counted already stay as they are."""
    values = {
        "team_id": session.task.team_id,
        "member_id": session.owner_id,
        "agent_type": session.agent_profile.agent_type,
    }
    ended = [(turn, turn.ended_at) for turn in turns if turn.has_process and turn.ended_at is not None]
    _write([_row(session, turn, at, figures[turn.id], **values) for turn, at in ended])


def _row(session: TaskSession, turn: Turn, at: datetime, figures: TurnFigures, **values: Any) -> TurnUsage:
    return TurnUsage(
        turn_id=turn.id,
        task_id=session.task_id,
        session_id=session.id,
        ended_at=at,
        day=local_day(at),
        **{name: getattr(figures, name) for name in TurnFigures.__slots__},
        **values,
    )


def _write(rows: Sequence[TurnUsage]) -> None:
    # A session that was deleted and is imported again has turns that are counted already.
    TurnUsage.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def _declared(name: str) -> UsageReport:
    try:
        return agent_type(name).usage
    except UnknownPlugin:
        return UsageReport()


def _earlier(session: TaskSession, turn: Turn, before: TurnUsage | None) -> Earlier:
    if before is None:
        # Turns that ended under a release without this table have reported what is no longer known.
        has_earlier = Turn.objects.filter(session=session, has_process=True).exclude(id=turn.id).exists()
        return Earlier(None) if has_earlier else FIRST_TURN
    same_process = bool(session.launch_id) and before.launch_id == session.launch_id
    same_conversation = same_process
    if not same_process:
        begun = ContinuityReceipt.objects.filter(session=session, created_at__gt=before.ended_at)
        same_conversation = not begun.filter(kind__in=_NEW_CONVERSATION).exists()
    return Earlier(before.counters, same_process=same_process, same_conversation=same_conversation)
