"""The ledger of what turns have used, which outlives their sessions; budgets, and the prompts that wait for them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import models
from django.db.transaction import on_commit
from django.utils import timezone

from executors_app.agents import UsageReport
from executors_app.machine import crash_points
from executors_app.orm import ObjectField
from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.kernel.models.session import Task, TaskSession, choices
from sessions_app.kernel.rules.states import OPEN_RUN_STATES, PromptState
from sessions_app.prompts.models import Prompt
from sessions_app.recovery.models import ContinuityReceipt
from sessions_app.recovery.rules.verification import ReceiptKind
from sessions_app.turns.models import Turn
from sessions_app.usage.events import BudgetHeld, BudgetReleased
from sessions_app.usage.rules.budgets import (
    BudgetScope,
    Hold,
    HoldEnd,
    HoldReason,
    Limits,
    Spent,
    find_hold,
    hold_sentence,
)
from sessions_app.usage.rules.figures import FIRST_TURN, Earlier, TurnFigures, last_figures, turn_figures

if TYPE_CHECKING:
    from sessions_app.kernel.transactions import SessionTransaction

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
        verbose_name, verbose_name_plural = "usage of a turn", "usage of turns"
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


def end_of_day() -> datetime:
    """Return when the present day ends."""
    tomorrow = local_day(timezone.now()) + timedelta(days=1)
    return datetime.combine(tomorrow, time(), timezone.get_default_timezone())


def record_turn_usage(session: TaskSession, turn: Turn, at: datetime) -> TurnFigures:
    """Write down what a turn that has just ended has used alone, and return it."""
    of_turn = Turn.objects.filter(id=turn.id).values_list(
        "session__task__team_id", "session__agent_profile__agent_type", "prompt__by_id", "prompt__created_at"
    )
    team_id, name, sender_id, prompted_at = of_turn.get()
    reported = dict(turn.usage or {})
    before = TurnUsage.objects.filter(session_id=session.id).order_by("-ended_at").first()
    figures = turn_figures(reported, _declared(name), _earlier(session, turn, before))
    # The time of the journal is by the clock of the agent's machine: one that is ahead must not use tomorrow's budget,
    # and one that is behind must not leave today's unused: no turn ends before its prompt was written.
    at = min(max(at, prompted_at or at), timezone.now())
    row = _row(session, turn, at, figures, team_id=team_id, member_id=sender_id or session.owner_id, agent_type=name)
    row.launch_id, row.counters = session.launch_id, last_figures(reported, before.counters if before else {})
    if before is not None:
        # Two turns of one batch end at the same time, and the clock may be set back: the newest row stays the last one.
        row.ended_at = max(at, before.ended_at + timedelta.resolution)
    _write([row])
    crash_points.reached("usage.turn_counted", session.id)
    return figures


def add_imported_usage(session: TaskSession, turns: Sequence[Turn], figures: Mapping[uuid.UUID, TurnFigures]) -> None:
    """Write down what the turns of an imported session have used; those that are counted already stay as they are."""
    values = {
        "team_id": session.task.team_id,
        "member_id": session.owner_id,
        "agent_type": session.agent_profile.agent_type,
    }
    now = timezone.now()  # the clock that wrote the log may have been ahead, and must not use tomorrow's budget either
    ended = [(turn, min(turn.ended_at, now)) for turn in turns if turn.has_process and turn.ended_at is not None]
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


class UsageBudget(TeamModel):
    """What a session may use in all, or a team on one day. A limit that is null does not exist.

    Releases without this table delete what it refers to without looking at it, so the database does not enforce these
    references.
    """

    team_path = ("team", "session__task__team")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.OneToOneField(
        "auth.Group", models.CASCADE, null=True, blank=True, related_name="usage_budget", db_constraint=False
    )
    session = models.OneToOneField(
        TaskSession, models.CASCADE, null=True, blank=True, related_name="usage_budget", db_constraint=False
    )
    tokens = models.BigIntegerField(null=True, blank=True)
    cost = models.FloatField(null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True, default="")
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "usage_budgets"
        constraints = (
            models.CheckConstraint(
                condition=models.Q(team=None, session__isnull=False) | models.Q(team__isnull=False, session=None),
                name="budget_of_team_or_session",
            ),
        )

    def __str__(self) -> str:
        return f"budget of {self.scope} {self.session_id or self.team_id}"

    @property
    def scope(self) -> BudgetScope:
        """Whether it is a session's or a team's."""
        return BudgetScope.TEAM if self.session_id is None else BudgetScope.SESSION

    @property
    def limits(self) -> Limits:
        """Its limits."""
        return Limits(self.tokens, self.cost, self.currency)


class BudgetHold(TeamModel):
    """A time in which a budget holds the prompts of a session back."""

    team_path = "session__task__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(TaskSession, models.CASCADE, related_name="budget_holds", db_constraint=False)
    scope = models.CharField(max_length=8, choices=choices(BudgetScope))
    reason = models.CharField(max_length=8, choices=choices(HoldReason))
    limit = models.CharField(max_length=64)
    """The budget in words."""
    used = models.CharField(max_length=64)
    """What was used of it when the hold began, in words."""
    began_at = models.DateTimeField(default=timezone.now, editable=False)
    ends_at = models.DateTimeField(null=True, blank=True)
    """When the day of a team's budget ends; None: a session's budget, which has no days."""
    ended_at = models.DateTimeField(null=True, blank=True)
    end = models.CharField(max_length=8, choices=choices(HoldEnd), blank=True, default="")

    class Meta(TeamModel.Meta):
        db_table = "budget_holds"
        ordering = ("began_at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("session",), condition=models.Q(ended_at=None), name="one_open_budget_hold_per_session"
            ),
        )

    def __str__(self) -> str:
        return f"hold {str(self.id)[:8]} ({self.end or 'open'})"

    @property
    def sentence(self) -> str:
        """Which budget holds the prompts back, and why."""
        return hold_sentence(self.scope, self.reason, self.limit, self.used)

    def is_about(self, hold: Hold) -> bool:
        """Whether it is the hold that was found now."""
        return (self.scope, self.reason, self.limit) == (hold.scope, hold.reason, hold.limit)


def add_imported_budget(session: TaskSession, limits: Limits) -> None:
    """Give an imported session the budget that its log says it had.

    A release without this table may have deleted the session before, and has left the budget of that time.
    """
    UsageBudget.objects.filter(session_id=session.id).delete()
    if not limits.is_empty:
        UsageBudget.objects.create(session=session, tokens=limits.tokens, cost=limits.cost, currency=limits.currency)


def open_hold(session_id: uuid.UUID) -> BudgetHold | None:
    """Return what holds the prompts of a session back; None if no budget does."""
    return BudgetHold.objects.filter(session_id=session_id, ended_at=None).first()


def budget_of_next_prompt(session: TaskSession, *, locks: bool = False) -> Hold | None:
    """Return the budget that does not allow the session's next prompt now; None if all allow it.

    With ``locks`` the budgets stay locked until the end of the transaction, so that of several sessions of a team one
    after the other is checked, and each sees the prompts that the others send.
    """
    return budgets_of_next_prompts([session], locks=locks).get(session.id)


def budgets_of_next_prompts(sessions: Collection[TaskSession], *, locks: bool = False) -> dict[uuid.UUID, Hold]:
    """Return the budgets that do not allow the next prompts of sessions now, by session.

    The number of queries does not depend on how many sessions there are.
    """
    tasks = {session.task_id for session in sessions}
    of_tasks = Task.objects.filter(id__in=tasks)
    rows = UsageBudget.objects.filter(
        models.Q(session__in=[session.id for session in sessions]) | models.Q(team_id__in=of_tasks.values("team_id"))
    )
    if locks:
        rows = rows.select_for_update(no_key=True)
    budgets = [row for row in rows if not row.limits.is_empty]
    if not budgets:
        return {}  # as of most sessions
    of_sessions = {row.session_id: row.limits for row in budgets if row.session_id is not None}
    of_teams: dict[int | None, Limits] = {row.team_id: row.limits for row in budgets if row.team_id is not None}
    running = _running_turns(of_teams)  # before the sums: a turn that ends meanwhile counts twice
    today = TurnUsage.objects.filter(team_id__in=of_teams, day=local_day(timezone.now()))
    spent_today = _spent("team_id", today)
    spent = _spent("session_id", TurnUsage.objects.filter(session_id__in=of_sessions))
    teams = dict(of_tasks.values_list("id", "team_id"))
    found = {}
    for session in sessions:
        hold = None
        if limits := of_sessions.get(session.id):
            hold = find_hold(BudgetScope.SESSION, limits, spent.get(session.id, Spent()))
        team_id = teams.get(session.task_id)
        if hold is None and (limits := of_teams.get(team_id)):
            others = sum(running[team_id].values()) - running[team_id][session.id]
            hold = find_hold(BudgetScope.TEAM, limits, replace(spent_today.get(team_id, Spent()), running=others))
        if hold is not None:
            found[session.id] = hold
    return found


def _spent(key: str, rows: models.QuerySet[TurnUsage]) -> dict[Any, Spent]:
    """Return the sums of turns by the values of a column; one query."""
    sums = (
        rows.order_by()
        .values(key, "currency")
        .annotate(
            tokens_sum=models.Sum("tokens"),
            tokens_max=models.Max("tokens"),
            cost_sum=models.Sum("cost"),
            cost_max=models.Max("cost"),
        )
    )
    found: dict[Any, Spent] = {}
    for row in sums:
        before = found.get(row[key], Spent())
        tokens = before.tokens + int(row["tokens_sum"] or 0)
        largest = max(before.largest_tokens, row["tokens_max"] or 0)
        costs, largest_costs = dict(before.costs), dict(before.largest_costs)
        if row["currency"]:
            costs[row["currency"]], largest_costs[row["currency"]] = row["cost_sum"], row["cost_max"]
        found[row[key]] = Spent(tokens, costs, 0, largest, largest_costs)
    return found


def _running_turns(teams: Collection[int | None]) -> dict[int | None, Counter[uuid.UUID]]:
    """Return how many turns run, or are about to begin, by team and session."""
    of_teams = {"session__task__team_id__in": teams}
    sent = Prompt.objects.filter(**of_teams, state=PromptState.SENDING)
    turns = Turn.objects.filter(**of_teams, state__in=OPEN_RUN_STATES, has_process=True)
    found: dict[int | None, Counter[uuid.UUID]] = {team_id: Counter() for team_id in teams}
    # Those that are about to begin first, so that one that begins meanwhile is counted.
    for rows in (sent, turns):
        counts = rows.order_by().values("session__task__team_id", "session_id").annotate(number=models.Count("*"))
        for row in counts:
            found[row["session__task__team_id"]][row["session_id"]] += row["number"]
    return found


def is_held_by_budget(transaction: SessionTransaction) -> bool:
    """Whether a budget holds the next prompt of a session back; record it if that has changed."""
    session = transaction.session
    row, hold = open_hold(session.id), budget_of_next_prompt(session, locks=True)
    if row is not None and (hold is None or not row.is_about(hold)):
        end_hold(transaction, row, HoldEnd.ALLOWED if hold is None else HoldEnd.REPLACED)
        row = None
    if hold is not None and row is None:
        _begin_hold(transaction, hold)
    return hold is not None


def _begin_hold(transaction: SessionTransaction, hold: Hold) -> None:
    values = {"scope": hold.scope, "reason": hold.reason, "limit": hold.limit, "used": hold.used}
    ends_at = end_of_day() if hold.scope is BudgetScope.TEAM else None
    row = BudgetHold.objects.create(session=transaction.session, began_at=transaction.at, ends_at=ends_at, **values)
    transaction.record_event(BudgetHeld(hold_id=str(row.id), **{name: str(value) for name, value in values.items()}))
    _reach_crash_points(row)


def _reach_crash_points(row: BudgetHold) -> None:
    crash_points.reached("budget.hold_written", row.session_id)
    on_commit(lambda: crash_points.reached("budget.hold_committed", row.session_id))


def end_hold(transaction: SessionTransaction, row: BudgetHold, end: HoldEnd) -> bool:
    """End a hold; return False if it has ended already."""
    changed = BudgetHold.objects.filter(id=row.id, ended_at=None).update(ended_at=timezone.now(), end=end)
    if changed:
        transaction.record_event(BudgetReleased(hold_id=str(row.id), reason=str(end)))
        _reach_crash_points(row)
    return bool(changed)
