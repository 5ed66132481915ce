"""The page of usage, which shows what the teams of a user have used, with charts; and the budget of a team."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from django.contrib import messages
from django.contrib.auth.models import Group
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from sessions_app.accounts.authorization import may_manage
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.team_scope import teams_of
from sessions_app.accounts.views.settings import render_settings
from sessions_app.accounts.views.teams import find_visible_team
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import Task
from sessions_app.pages.shortcuts import form_status, queried_number
from sessions_app.usage import budgets
from sessions_app.usage.forms import BudgetForm
from sessions_app.usage.rules.budgets import limits_text
from sessions_app.usage.rules.charts import HEIGHT, WIDTH, bar_length, columns
from sessions_app.usage.rules.wording import cost_text, missing_text, summary_text, tokens_text
from sessions_app.usage.services import (
    DEFAULT_PERIOD,
    DELETED_TASK,
    PERIODS,
    UsageFilter,
    UsageGroup,
    UsageReport,
    UsageTurn,
    newest_turns,
    usage_report,
)

ROW_WIDTH: Final = 100.0
_LONGEST_AGENT: Final = 64


@never_cache
@require_safe
def show_usage(request: UserHttpRequest) -> HttpResponse:
    """Show the usage of the last days (``?days=``).

    The query string may name one team, task, agent type, member or day; each number of the page leads to such a view,
    whose newest turns are listed.
    """
    days = queried_number(request, "days") or DEFAULT_PERIOD
    if days not in PERIODS:
        raise Http404("days must be one of the periods")
    teams = list(teams_of(request.user).order_by("name"))
    team_id = _queried_team(request, [team.pk for team in teams])
    task = _queried_task(request)
    chosen = UsageFilter(
        team_id,
        task.id if task else None,
        _queried_agent(request),
        queried_number(request, "member") if request.GET.get("member") else None,
        _queried_day(request),
    )
    report = usage_report(request.user, days, chosen)
    context = {
        "report": report,
        "summary": summary_text(report.total),
        "bars": columns([(_day_title(group), group.usage.tokens) for group in report.days]),
        "chart": {"width": WIDTH, "height": HEIGHT},
        "chart_summary": _chart_summary(report),
        "tables": _tables(report, request.GET),
        "turns": [_turn_row(turn) for turn in newest_turns(request.user, days, chosen)],
        "chosen": _chosen(request.GET, report),
        "periods": PERIODS,
        "days": days,
        "teams": teams,
        "team_id": team_id,
        "task": task,
        "zone_name": timezone.get_default_timezone_name(),
    }
    return render(request, "usage/usage.html", context)


def _queried_team(request: UserHttpRequest, known: list[int]) -> int | None:
    """Return the team in the query string; None without one. Raises Http404 for a team of others."""
    if not request.GET.get("team"):
        return None
    team_id = queried_number(request, "team")
    if team_id not in known:
        raise Http404("no such team")
    return team_id


def _queried_task(request: UserHttpRequest) -> Task | None:
    """Return the task in the query string; None without one. Raises Http404 for a task of others."""
    given = request.GET.get("task")
    if not given:
        return None
    try:
        task_id = uuid.UUID(given)
    except ValueError:
        raise Http404("task must be an id") from None
    found: Task = get_object_or_404(Task.objects.visible_to(request.user), id=task_id)
    return found


def _queried_agent(request: UserHttpRequest) -> str | None:
    """Return the agent type in the query string; None without one. Raises Http404 for what is no name."""
    name = request.GET.get("agent", "")
    if len(name) > _LONGEST_AGENT or not name.isprintable():  # a database refuses U+0000
        raise Http404("agent must be the name of an agent type")
    return name or None


def _queried_day(request: UserHttpRequest) -> date | None:
    """Return the day in the query string; None without one. Raises Http404 for what is no day."""
    given = request.GET.get("day")
    if not given:
        return None
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise Http404("day must be a date") from None


_CHOICES: Final = ("agent", "member", "day")
"""Parts of the query string that rows of the tables lead to, beside the task, which has a page of its own."""


def _chosen(query: QueryDict, report: UsageReport) -> list[tuple[str, str, str]]:
    """Return key, value and name of what the page is limited to."""
    names = {"agent": report.agents, "member": report.members}
    found = []
    for key in _CHOICES:
        if value := query.get(key):
            groups = names.get(key, [])
            name = next((group.name for group in groups if str(group.key) == value), value)
            found.append((key, value, name))
    return found


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn as evidence of a sum."""

    ended_at: datetime
    title: str
    url: str
    agent: str
    member: str
    tokens: str
    cost: str


def _turn_row(turn: UsageTurn) -> TurnRow:
    url = ""
    if turn.session_id is not None and turn.title != DELETED_TASK:
        url = reverse("session", args=[turn.task_id, turn.session_id])
    return TurnRow(
        turn.ended_at, turn.title, url, turn.agent, turn.member, tokens_text(turn.usage), cost_text(turn.usage)
    )


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of a table, with its bar."""

    name: str
    url: str
    turns_url: str
    """The page limited to the turns of this row; empty: it has no key to limit it to."""
    tokens: str
    cost: str
    turns: int
    missing: str
    bar: float


@dataclass(frozen=True, slots=True)
class UsageTable:
    """The usage by agent, member, task or day."""

    name: str
    title: str
    column: str
    rows: list[UsageRow]


def _tables(report: UsageReport, query: QueryDict) -> list[UsageTable]:
    used_days = [group for group in reversed(report.days) if group.usage.turns]
    return [
        _table("agents", "By agent", "agent", report.agents, query),
        _table("members", "By member", "member", report.members, query),
        _table("tasks", "By task", "task", report.tasks, query),
        _table("by-day", f"By day, {timezone.get_default_timezone_name()}", "day", used_days, query),
    ]


def _table(name: str, title: str, key: str, groups: list[UsageGroup], query: QueryDict) -> UsageTable:
    most = max((group.usage.tokens for group in groups), default=0)
    return UsageTable(name, title, key.capitalize(), [_row(group, most, key, query) for group in groups])


def _row(group: UsageGroup, most: int, key: str, query: QueryDict) -> UsageRow:
    url = turns_url = ""
    is_deleted = group.name == DELETED_TASK
    if key == "task" and group.key is not None and not is_deleted:
        url = reverse("task", args=[group.key])
    if group.key is not None and not is_deleted:
        limited = query.copy()
        limited[key] = str(group.key)
        turns_url = f"?{limited.urlencode()}#turns"
    return UsageRow(
        name=group.name,
        url=url,
        turns_url=turns_url,
        tokens=tokens_text(group.usage),
        cost=cost_text(group.usage),
        turns=group.usage.turns,
        missing=missing_text(group.usage),
        bar=bar_length(group.usage.tokens, most, ROW_WIDTH),
    )


def _day_title(group: UsageGroup) -> str:
    return f"{group.name}: {summary_text(group.usage)}"


def _chart_summary(report: UsageReport) -> str:
    """Say in a sentence what the chart shows."""
    most = max(report.days, key=lambda group: group.usage.tokens)
    if not most.usage.tokens:
        return "No tokens were reported on any day."
    return f"Tokens by day. The most on one day are {most.usage.tokens:,}, on {most.name}."


@never_cache
def edit_team_budget(request: UserHttpRequest, team_id: int) -> HttpResponse:
    """Show the budget of a team for each day. A POST by a user who manages the team changes it."""
    team = find_visible_team(request, team_id)
    limits = budgets.budget_of_team(team)
    form = BudgetForm(request.POST or None, initial=BudgetForm.initial_of(limits))
    if request.method == "POST" and form.is_valid() and _saves(form, team, request):
        messages.success(request, "Saved. It applies to the next prompt of each session.")
        return redirect("settings-team-budget", team.pk)
    context = {
        "team": team,
        "form": form,
        "manages": may_manage(request.user, team),
        "limits": limits_text(limits),
        "zone_name": timezone.get_default_timezone_name(),
    }
    return render_settings(request, "usage/team_budget.html", "settings-teams", context, form_status(form))


def _saves(form: BudgetForm, team: Group, request: UserHttpRequest) -> bool:
    try:
        budgets.set_team_budget(team, form.limits(), request.user)
    except Invalid as error:
        form.add_error(None, error.message)
        return False
    return True
