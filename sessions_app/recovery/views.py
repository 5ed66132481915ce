"""Pages about recovery: sweeps and their decisions, and restarts of the control plane."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from executors_app.wire.executions import ExecutorStatus, Observed
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.catalogue.services.executors import visible_executions
from sessions_app.kernel.rules.parsers import parse_number
from sessions_app.models import ContinuityReceipt, RecoverySweep, Supervisor, SweepOutcome, SweepRequest, Turn
from sessions_app.pages.labels import (
    OUTCOME_LABELS,
    SWEEP_TRIGGER_LABELS,
    decision_label,
    receipt_kind_label,
    receipt_label_in_history,
)
from sessions_app.pages.shortcuts import READ_METHODS, part_response
from sessions_app.recovery.rules.recovery import SKIPPED, UNDER_WAY, row_result
from sessions_app.recovery.rules.resume_cost import cost_sentence, usage_sentence
from sessions_app.recovery.services import restarts, sweeps
from sessions_app.recovery.services.resume_costs import costs_if_ended, first_turns
from sessions_app.sessions.rules.situation_facts import Label, humanize_code
from sessions_app.timeline.views import rule_sentence

MAX_SWEEPS_SHOWN: Final = 50
"""Newest sweeps on the page."""
MAX_ROWS_SHOWN: Final = 200
BAR_WIDTH: Final = 100.0
_QUERY_LIMIT: Final = 200
_RESULT_LABELS: Final[Mapping[str, Label]] = {**OUTCOME_LABELS, UNDER_WAY: Label("still starting", "busy")}
_OBSERVED_LABELS: Final[Mapping[str, Label]] = {
    Observed.ALIVE: Label("Alive", "good"),
    Observed.DEAD: Label("Dead", "bad"),
    Observed.UNKNOWN: Label("Unknown", "ask"),
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def list_sweeps(request: UserHttpRequest) -> HttpResponse:
    """Show the newest sweeps. A POST by staff requests another one; with ``dry_run``, that one writes nothing."""
    if request.method in READ_METHODS:
        return render(request, "recovery/sweeps.html", sweeps_context(request.user))
    if not request.user.is_staff:
        raise PermissionDenied
    sweep_request = sweeps.request_sweep(request.user, dry_run=bool(request.POST.get("dry_run")))
    messages.info(request, "The sweep was requested. Its result appears here.")
    return redirect("sweep-request", sweep_request.id)


def sweeps_context(user: User) -> dict[str, Any]:
    """Return the newest sweeps with their results for the user's sessions, and whether a requested one is pending."""
    rows = list(RecoverySweep.objects.all()[: MAX_SWEEPS_SHOWN + 1])
    counts = sweeps.count_results(user, rows[:MAX_SWEEPS_SHOWN])
    return {
        "sweeps": [SweepCard(counts[row.id], row) for row in rows[:MAX_SWEEPS_SHOWN]],
        "has_older": len(rows) > MAX_SWEEPS_SHOWN,
        "is_pending": SweepRequest.objects.filter(done_at=None, dry_run=False).exists(),
    }


@dataclass(frozen=True, slots=True)
class SweepCard:
    """The results of a sweep for the user's sessions."""

    numbers: Mapping[str, int]
    """How many sessions had each result."""
    sweep: RecoverySweep | None = None
    """None: a requested sweep, which may not have been stored."""

    @property
    def trigger(self) -> str:
        """What the sweep was made for, in words."""
        if self.sweep is None:
            return ""
        return SWEEP_TRIGGER_LABELS.get(self.sweep.trigger, self.sweep.trigger)

    @property
    def counts(self) -> list[tuple[int, Label, str]]:
        """The numbers of sessions by result, each with the result in words and its kind."""
        numbers = self.numbers
        return [(numbers[kind], label, kind) for kind, label in _RESULT_LABELS.items() if numbers.get(kind)]

    @property
    def summary(self) -> str:
        """The numbers in words."""
        return ", ".join(f"{count} {label.text}" for count, label, _ in self.counts) or "nothing to check"

    @property
    def bar(self) -> list[dict[str, str]]:
        """The numbers as parts of a bar of ``BAR_WIDTH`` units: tone, start (``x``) and width."""
        total = sum(self.numbers.values())
        start = 0.0
        parts = []
        for count, label, _ in self.counts:
            width = BAR_WIDTH * count / total
            parts.append({"tone": label.tone, "x": f"{start:.2f}", "width": f"{width:.2f}"})
            start += width
        return parts


@never_cache
@require_safe
def show_sweep(request: UserHttpRequest, sweep_id: uuid.UUID) -> HttpResponse:
    """Show one sweep and its decisions for the user's sessions, filtered by ``q``, ``seen`` and ``came``."""
    row = get_object_or_404(RecoverySweep, id=sweep_id)
    criteria = _parse_sweep_filter(request)
    number = parse_number(request.GET.get("page", "1"), 5) or 1
    page = sweeps.load_outcomes(request.user, row, criteria, start=(number - 1) * MAX_ROWS_SHOWN, limit=MAX_ROWS_SHOWN)
    context = {
        "card": SweepCard(page.counts, row),
        "rows": [OutcomeRow(outcome, result) for outcome, result in page.rows],
        "count": page.count,
        "total": page.total,
        "criteria": criteria,
        "filtered": criteria != sweeps.OutcomeFilter(),
        "observed_choices": [(value, label.text) for value, label in _OBSERVED_LABELS.items()],
        "result_choices": [(kind, label.text) for kind, label in _RESULT_LABELS.items()],
        "earlier": _previous_sweep(request.user, row),
    }
    if number > 1:
        context["previous_page"] = _sweep_query(criteria, number - 1)
    if page.count > number * MAX_ROWS_SHOWN:
        context["next_page"] = _sweep_query(criteria, number + 1)
    return render(request, "recovery/sweep.html", context)


def _parse_sweep_filter(request: UserHttpRequest) -> sweeps.OutcomeFilter:
    """Return the filter in a query string; values that are not valid are ignored."""
    observed, result = request.GET.get("seen", ""), request.GET.get("came", "")
    if observed not in _OBSERVED_LABELS:
        observed = ""
    if result not in _RESULT_LABELS:
        result = ""
    text = request.GET.get("q", "").replace("\0", "").strip()[:_QUERY_LIMIT]
    return sweeps.OutcomeFilter(text=text, observed=observed, result=result)


def _sweep_query(criteria: sweeps.OutcomeFilter, page: int) -> str:
    """Return the query string of a page (the inverse of ``_parse_sweep_filter``)."""
    values = {"q": criteria.text, "seen": criteria.observed, "came": criteria.result, "page": page}
    return urlencode({name: value for name, value in values.items() if value})


def _previous_sweep(user: User, row: RecoverySweep) -> SweepCard | None:
    """Return the previous sweep with the same trigger, for comparison."""
    earlier = RecoverySweep.objects.filter(trigger=row.trigger, started_at__lt=row.started_at).first()
    if earlier is None:
        return None
    return SweepCard(sweeps.count_results(user, [earlier])[earlier.id], earlier)


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What a sweep observed of a session, decided and did."""

    outcome: SweepOutcome
    result: str
    """A kind of receipt, ``under_way`` or ``skipped``."""

    @property
    def observed(self) -> Label:
        """Whether its agent was found alive."""
        return _observed_label(self.outcome.observed)

    @property
    def rule(self) -> str:
        """The code of the rule that decided, in words."""
        return humanize_code(self.outcome.rule)

    @property
    def why(self) -> str:
        """The rule as a sentence."""
        return rule_sentence(self.outcome.rule)

    @property
    def decision(self) -> str:
        """What was decided."""
        return decision_label(self.outcome.agent_action, self.outcome.strategy)

    @property
    def receipt(self) -> Label | None:
        """The result; None if the session was skipped."""
        if self.result == SKIPPED:
            return None
        return _RESULT_LABELS.get(self.result) or receipt_kind_label(self.result)

    @property
    def reason(self) -> str:
        """Why it was skipped or failed, in words."""
        return humanize_code(self.outcome.reason)


def _observed_label(observed: str) -> Label:
    return _OBSERVED_LABELS.get(observed, Label(observed or "–", "off"))


@never_cache
@require_safe
def show_sweep_request(request: UserHttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """Show the progress and the result of a requested sweep."""
    row = get_object_or_404(SweepRequest, id=request_id)
    return render(request, "recovery/sweep_request.html", sweep_request_context(request.user, row))


def sweep_request_context(user: User, row: SweepRequest) -> dict[str, Any]:
    """Return the progress of a requested sweep and, once it is done, its counts and the rows of the user's teams."""
    rows = sweeps.report_for(user, row)
    numbers = Counter(each.get("result") or row_result(each) for each in rows)
    return {
        "sweep_request": row,
        "done": row.done_at is not None,
        "report": row.report or {},
        "card": SweepCard(numbers),
        "rows": [_report_row(each) for each in rows[:MAX_ROWS_SHOWN]],
    }


def _report_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "session_id": row.get("session_id", ""),
        "task_id": row.get("task_id", ""),
        "task_title": row.get("task_title", ""),
        "error_message": row.get("error_message", ""),
        "observed": _observed_label(row.get("observed", "")),
        "why": rule_sentence(row.get("rule", "")),
        "decision": decision_label(row.get("agent_action", ""), row.get("strategy", "")),
    }


MAX_RESTART_RECEIPTS = 50
"""Maximum number of receipts on the page."""
MAX_COSTS: Final = 20
"""Maximum number of running agents whose resume is described."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def restart_control_plane(request: UserHttpRequest) -> HttpResponse:
    """Show the result of the last restart. A POST requests another one if ``restarts.can_order_restart`` allows it."""
    allowed = restarts.can_order_restart(request.user)
    if request.method in READ_METHODS:
        context = {"allowed": allowed, "restart": RestartPage(request.user)}
        return render(request, "recovery/restart.html", context)
    if not allowed:
        raise PermissionDenied
    restarts.order_restart(request.user)
    return redirect("restart")


class RestartPage:
    """The progress of the last requested restart, and the receipts of the user's teams since then."""

    def __init__(self, user: User) -> None:
        self._user = user
        self.last = restarts.last_ordered()
        """The last restart that was carried out; None: there was none."""

    @property
    def is_ordered(self) -> bool:
        """Whether a restart was requested that is not carried out yet."""
        return restarts.is_ordered()

    @cached_property
    def alive_count(self) -> int:
        """How many agents of the user's teams are running."""
        live = (ExecutorStatus.STARTING, ExecutorStatus.READY)
        return visible_executions(self._user).filter(status__in=live).count()

    @cached_property
    def supervisor(self) -> Supervisor | None:
        """The first supervisor that started after the restart."""
        if self.last is None:
            return None
        return Supervisor.objects.filter(started_at__gte=self.last.killed_at).order_by("started_at").first()

    @property
    def seconds_away(self) -> float | None:
        """How long no supervisor ran."""
        if self.last is None or self.supervisor is None:
            return None
        return (self.supervisor.started_at - self.last.killed_at).total_seconds()

    @property
    def seconds_until_swept(self) -> float | None:
        """How long it took until every session was checked; None: it has not been yet."""
        if self.last is None or self.supervisor is None or self.supervisor.swept_at is None:
            return None
        return (self.supervisor.swept_at - self.last.killed_at).total_seconds()

    @cached_property
    def sweep(self) -> RecoverySweep | None:
        """The first sweep of that supervisor."""
        if self.last is None or self.supervisor is None:
            return None
        return RecoverySweep.objects.filter(trigger="boot", started_at__gte=self.last.killed_at).last()

    @cached_property
    def costs_if_ended(self) -> list[dict[str, Any]]:
        """What it would cost to resume the running agents if they ended, as far as that is known."""
        running = visible_executions(self._user).filter(status=ExecutorStatus.READY).order_by("-created_at", "id")
        rows = running.select_related("session__task__repository", "session__agent_profile", "session__executor")
        costs = costs_if_ended(list(rows[:MAX_COSTS]))
        return [{"session": session, "text": cost_sentence(cost)} for session, cost in costs]

    @cached_property
    def receipts(self) -> list[tuple[ContinuityReceipt, Label, str]]:
        """The receipts of the user's teams since the restart, with their labels and what each resume cost."""
        if self.last is None:
            return []
        rows = ContinuityReceipt.objects.visible_to(self._user).with_history().with_first_turn()
        rows = rows.filter(created_at__gte=self.last.killed_at).order_by("created_at")
        rows = rows.select_related("session__task", "session__agent_profile")
        receipts = list(rows[:MAX_RESTART_RECEIPTS])
        turns = first_turns(receipts)
        return [(row, receipt_label_in_history(row), _cost_text(turns.get(row.id))) for row in receipts]

    @property
    def unharmed_count(self) -> int:
        """How many agents kept working in the same process."""
        return sum(receipt.kind == "reattached" for receipt, _, _ in self.receipts)


def _cost_text(first_turn: Turn | None) -> str:
    """Return what the first turn after a resume cost; empty if there is none."""
    if first_turn is None:
        return ""
    return usage_sentence(first_turn.usage)


@never_cache
@require_GET
def sweep_request_updates(request: UserHttpRequest, request_id: uuid.UUID) -> JsonResponse:
    """Return the progress of a requested sweep."""
    context = sweep_request_context(request.user, get_object_or_404(SweepRequest, id=request_id))
    return part_response("request", "recovery/sweep_request_state.html", context)


@never_cache
@require_GET
def restart_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the progress of the requested restart."""
    return part_response("restart", "recovery/restart_state.html", {"restart": RestartPage(request.user)})


@never_cache
@require_GET
def sweep_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the newest sweeps."""
    return part_response("sweeps", "recovery/sweeps_list.html", sweeps_context(request.user))
