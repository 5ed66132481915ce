"""Sums of the ledger: by day, agent, member and task, for the teams of a user."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from executors_app.plugins import UnknownPlugin, agent_type
from sessions_app.kernel.rules.wording import count_text
from sessions_app.models import Task, TaskSession, TurnUsage
from sessions_app.usage.models import local_day
from sessions_app.usage.rules.figures import Usage, add_usage

PERIODS: Final = (7, 30, 90, 365)
"""Numbers of days that a report can be about; the last one is today."""
DEFAULT_PERIOD: Final = 30
MOST_ROWS: Final = 50
"""Agents, members and tasks of a report that are listed each; the others are one row."""
DELETED_TASK: Final = "A deleted task"
Namer = Callable[[Sequence[Any]], Mapping[Any, str]]
_SUMS: Final = {
    "turns": Count("turn_id"),
    "turns_without_tokens": Count("turn_id", filter=Q(tokens=None)),
    "turns_without_cost": Count("turn_id", filter=Q(cost=None)),
    "tokens_sum": Sum("tokens"),
    "input_sum": Sum("input_tokens"),
    "output_sum": Sum("output_tokens"),
    "cached_sum": Sum("cached_tokens"),
    "cost_sum": Sum("cost"),
}


@dataclass(frozen=True, slots=True)
class UsageGroup:
    """The usage of one day, agent, member or task."""

    key: Any
    """None: of unknown ones, or of those that are not listed."""
    name: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the teams of a user have used in a period."""

    since: date
    until: date
    total: Usage
    days: list[UsageGroup]
    """Every day of the period, also those without a turn."""
    agents: list[UsageGroup]
    members: list[UsageGroup]
    tasks: list[UsageGroup]


@dataclass(frozen=True, slots=True)
class UsageTurn:
    """One turn of a report: the evidence of its sums."""

    ended_at: datetime
    title: str
    """Of its task."""
    task_id: uuid.UUID
    session_id: uuid.UUID | None
    """None: the session was deleted."""
    agent: str
    member: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What a report is about; a value that is None leaves nothing out."""

    team: int | None = None
    task: uuid.UUID | None = None
    agent: str | None = None
    member: int | None = None
    day: date | None = None


ALL_USAGE: Final = UsageFilter()


def _rows(user: User, days: int, chosen: UsageFilter) -> QuerySet[TurnUsage]:
    until = local_day(timezone.now())
    rows = TurnUsage.objects.visible_to(user).filter(day__gte=until - timedelta(days=days - 1), day__lte=until)
    columns = {
        "team_id": chosen.team,
        "task_id": chosen.task,
        "agent_type": chosen.agent,
        "member_id": chosen.member,
        "day": chosen.day,
    }
    return rows.filter(**{name: value for name, value in columns.items() if value is not None})


def usage_report(user: User, days: int = DEFAULT_PERIOD, chosen: UsageFilter = ALL_USAGE) -> UsageReport:
    """Return what ``user`` may see of the last ``days`` days, today included."""
    until = local_day(timezone.now())
    since = until - timedelta(days=days - 1)
    rows = _rows(user, days, chosen)
    by_day = _sums(rows, "day")
    dates = [since + timedelta(days=number) for number in range(days)]
    return UsageReport(
        since=since,
        until=until,
        total=add_usage(list(by_day.values())),
        days=[UsageGroup(day, day.isoformat(), by_day.get(day, Usage())) for day in dates],
        agents=_groups(rows, "agent_type", _agent_titles, "agent"),
        members=_groups(rows, "member_id", _member_names, "member"),
        tasks=_groups(rows, "task_id", partial(_task_titles, user), "task"),
    )


def newest_turns(user: User, days: int = DEFAULT_PERIOD, chosen: UsageFilter = ALL_USAGE) -> list[UsageTurn]:
    """Return the newest turns of a report, at most ``MOST_ROWS``."""
    rows = list(_rows(user, days, chosen).order_by("-ended_at", "-turn_id")[:MOST_ROWS])
    sessions = set(TaskSession.objects.filter(id__in={row.session_id for row in rows}).values_list("id", flat=True))
    titles = _task_titles(user, [row.task_id for row in rows])
    members = _member_names([row.member_id for row in rows])
    return [
        UsageTurn(
            ended_at=row.ended_at,
            title=titles[row.task_id],
            task_id=row.task_id,
            session_id=row.session_id if row.session_id in sessions else None,
            agent=_agent_title(row.agent_type),
            member=members[row.member_id],
            usage=_usage_of_turn(row),
        )
        for row in rows
    ]


def _usage_of_turn(row: TurnUsage) -> Usage:
    return Usage(
        turns=1,
        turns_without_tokens=int(row.tokens is None),
        turns_without_cost=int(row.cost is None),
        tokens=row.tokens or 0,
        costs=((row.currency, row.cost),) if row.cost is not None else (),
    )


def session_usage(session_id: uuid.UUID) -> Usage:
    """Return what a session has used."""
    return _whole(TurnUsage.objects.filter(session_id=session_id))


def task_usage(task_id: uuid.UUID) -> Usage:
    """Return what all sessions of a task have used, also those that were deleted."""
    return _whole(TurnUsage.objects.filter(task_id=task_id))


def _whole(rows: QuerySet[TurnUsage]) -> Usage:
    return add_usage([_usage(sums) for sums in rows.order_by().values("currency").annotate(**_SUMS)])


def _sums(rows: QuerySet[TurnUsage], name: str) -> dict[Any, Usage]:
    """Return the usage by the values of a column; one query."""
    parts: dict[Any, list[Usage]] = {}
    for sums in rows.order_by().values(name, "currency").annotate(**_SUMS):
        parts.setdefault(sums[name], []).append(_usage(sums))
    return {key: add_usage(found) for key, found in parts.items()}


def _usage(sums: Mapping[str, Any]) -> Usage:
    costs = ((sums["currency"], float(sums["cost_sum"])),) if sums["currency"] else ()
    return Usage(
        turns=sums["turns"],
        turns_without_tokens=sums["turns_without_tokens"],
        turns_without_cost=sums["turns_without_cost"],
        tokens=int(sums["tokens_sum"] or 0),
        input_tokens=int(sums["input_sum"] or 0),
        output_tokens=int(sums["output_sum"] or 0),
        cached_tokens=int(sums["cached_sum"] or 0),
        costs=costs,
    )


def _groups(rows: QuerySet[TurnUsage], column: str, name_them: Namer, unit: str) -> list[UsageGroup]:
    """Return the groups that used most first; those beyond the limit are one group, which the database sums."""
    by_use = rows.order_by().values(column).annotate(tokens_sum=Coalesce(Sum("tokens"), 0), turns=Count("turn_id"))
    most = by_use.order_by("-tokens_sum", "-turns", column).values_list(column, flat=True)
    keys = list(most[: MOST_ROWS + 1])
    listed, names = keys[:MOST_ROWS], name_them(keys[:MOST_ROWS])
    in_list = Q(**{f"{column}__in": [key for key in listed if key is not None]})
    if None in listed:
        in_list |= Q(**{column: None})
    usages = _sums(rows.filter(in_list), column)
    groups = [UsageGroup(key, names[key], usages[key]) for key in listed if key in usages]
    if len(keys) > MOST_ROWS:
        number = by_use.count() - len(listed)
        groups.append(UsageGroup(None, count_text(number, f"other {unit}"), _whole(rows.filter(~in_list))))
    return groups


def _agent_titles(keys: Sequence[Any]) -> dict[Any, str]:
    return {name: _agent_title(name) for name in keys}


def _agent_title(name: str) -> str:
    try:
        return str(agent_type(name).title)
    except UnknownPlugin:
        return name


def _member_names(keys: Sequence[Any]) -> dict[Any, str]:
    users = get_user_model().objects.filter(id__in=[key for key in keys if key is not None])
    names: dict[Any, str] = {user.pk: user.get_full_name() or user.get_username() for user in users}
    unknown = {None: "Nobody known"}
    return {key: names.get(key) or unknown.get(key, "A deleted account") for key in keys}


def _task_titles(user: User, keys: Sequence[Any]) -> dict[Any, str]:
    titles = dict(Task.objects.visible_to(user).filter(id__in=keys).values_list("id", "title"))
    return {key: titles.get(key, DELETED_TASK) for key in keys}
