"""The page of usage, which shows what the teams of a user have used, with charts; and the budget of a team."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from django.contrib import messages
from django.contrib.auth.models import Group
from django.http import Http404, HttpResponse
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
    UsageGroup,
    UsageReport,
    usage_report,
)

ROW_WIDTH: Final = 100.0


@never_cache
@require_safe
def show_usage(request: UserHttpRequest) -> HttpResponse:
    """Show the usage of the last days (``?days=``), of one team (``?team=``) or task (``?task=``)."""
    days = queried_number(request, "days") or DEFAULT_PERIOD
    if days not in PERIODS:
        raise Http404("days must be one of the periods")
    teams = list(teams_of(request.user).order_by("name"))
    team_id = _queried_team(request, [team.pk for team in teams])
    task = _queried_task(request)
    report = usage_report(request.user, days, team=team_id, task=task.id if task else None)
    context = {
        "report": report,
        "summary": summary_text(report.total),
        "bars": columns([(_day_title(group), group.usage.tokens) for group in report.days]),
        "chart": {"width": WIDTH, "height": HEIGHT},
        "chart_summary": _chart_summary(report),
        "tables": _tables(report),
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


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of a table, with its bar."""

    name: str
    url: str
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


def _tables(report: UsageReport) -> list[UsageTable]:
    used_days = [group for group in reversed(report.days) if group.usage.turns]
    return [
        _table("agents", "By agent", "Agent", report.agents),
        _table("members", "By member", "Member", report.members),
        _table("tasks", "By task", "Task", report.tasks, links=True),
        _table("by-day", "By day", "Day", used_days),
    ]


def _table(name: str, title: str, column: str, groups: list[UsageGroup], *, links: bool = False) -> UsageTable:
    most = max((group.usage.tokens for group in groups), default=0)
    return UsageTable(name, title, column, [_row(group, most, links=links) for group in groups])


def _row(group: UsageGroup, most: int, *, links: bool) -> UsageRow:
    url = ""
    if links and group.key is not None and group.name != DELETED_TASK:
        url = reverse("task", args=[group.key])
    return UsageRow(
        name=group.name,
        url=url,
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
