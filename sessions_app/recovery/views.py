"""Pages about recovery: sweeps and their decisions, and restarts of the control plane."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
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
from sessions_app.models import ContinuityReceipt, RecoverySweep, Supervisor, SweepOutcome, SweepRequest
from sessions_app.pages.labels import (
    OUTCOME_LABELS,
    SWEEP_TRIGGER_LABELS,
    decision_label,
    receipt_kind_label,
    receipt_label_in_history,
)
from sessions_app.pages.shortcuts import READ_METHODS, part_response
from sessions_app.recovery.rules.recovery import SKIPPED, UNDER_WAY, row_result
from sessions_app.recovery.services import restarts, sweeps
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
        "sweeps": [_sweep_context(row, counts[row.id]) for row in rows[:MAX_SWEEPS_SHOWN]],
        "older": len(rows) > MAX_SWEEPS_SHOWN,
        "awaited": SweepRequest.objects.filter(done_at=None, dry_run=False).exists(),
    }


@never_cache
@require_safe
def show_sweep(request: UserHttpRequest, sweep_id: uuid.UUID) -> HttpResponse:
    """Show one sweep and its decisions for the user's sessions, filtered by ``q``, ``seen`` and ``came``."""
    row = get_object_or_404(RecoverySweep, id=sweep_id)
    wanted, number = _parse_sweep_filter(request), parse_number(request.GET.get("page", "1"), 5) or 1
    page = sweeps.load_outcomes(request.user, row, wanted, start=(number - 1) * MAX_ROWS_SHOWN, limit=MAX_ROWS_SHOWN)
    parameters = {"q": wanted.text, "seen": wanted.observed, "came": wanted.result}
    query = {name: value for name, value in parameters.items() if value}
    previous_page = next_page = ""
    if number > 1:
        previous_page = urlencode({**query, "page": number - 1})
    if page.count > number * MAX_ROWS_SHOWN:
        next_page = urlencode({**query, "page": number + 1})
    context = {
        "shown": _sweep_context(row, page.counts),
        "rows": [_outcome_context(outcome, result) for outcome, result in page.rows],
        "count": page.count,
        "total": page.total,
        "wanted": wanted,
        "filtered": bool(query),
        "observed_choices": [(value, label.text) for value, label in _OBSERVED_LABELS.items()],
        "result_choices": [(kind, label.text) for kind, label in _RESULT_LABELS.items()],
        "previous_page": previous_page,
        "next_page": next_page,
        "older": _previous_sweep(request.user, row),
    }
    return render(request, "recovery/sweep.html", context)


def _parse_sweep_filter(request: UserHttpRequest) -> sweeps.OutcomeFilter:
    result, observed = request.GET.get("came", ""), request.GET.get("seen", "")
    if result not in _RESULT_LABELS:
        result = ""
    if observed not in _OBSERVED_LABELS:
        observed = ""
    text = request.GET.get("q", "").replace("\0", "").strip()[:_QUERY_LIMIT]
    return sweeps.OutcomeFilter(text=text, observed=observed, result=result)


def _previous_sweep(user: User, row: RecoverySweep) -> dict[str, Any] | None:
    """Return the previous sweep with the same trigger, for comparison."""
    earlier = RecoverySweep.objects.filter(trigger=row.trigger, started_at__lt=row.started_at).first()
    if earlier:
        return _sweep_context(earlier, sweeps.count_results(user, [earlier])[earlier.id])
    return None


@never_cache
@require_safe
def show_sweep_request(request: UserHttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """Show the progress and the result of a requested sweep."""
    row = get_object_or_404(SweepRequest, id=request_id)
    return render(request, "recovery/sweep_request.html", sweep_request_context(request.user, row))


def sweep_request_context(user: User, row: SweepRequest) -> dict[str, Any]:
    """Return the progress of a requested sweep and, once it is done, its counts and the rows of the user's teams."""
    report, rows = row.report or {}, sweeps.report_for(user, row)
    counts = Counter(one.get("result") or row_result(one) for one in rows)
    return {
        "sweep_request": row,
        "done": row.done_at is not None,
        "report": report,
        "shown": {**_count_labels(counts), "bar": _result_bar(counts)},
        "rows": [_report_row(one) for one in rows[:MAX_ROWS_SHOWN]],
    }


def _report_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "session_id": row.get("session_id", ""),
        "task_id": row.get("task_id", ""),
        "task_title": row.get("task_title", ""),
        "error_message": row.get("error_message", ""),
        "observed": _OBSERVED_LABELS.get(row.get("observed", ""), Label(row.get("observed") or "–", "off")),
        "why": rule_sentence(row.get("rule", "")),
        "decision": decision_label(row.get("agent_action", ""), row.get("strategy", "")),
    }


def _sweep_context(row: RecoverySweep, counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "sweep": row,
        "trigger": SWEEP_TRIGGER_LABELS.get(row.trigger, row.trigger),
        "bar": _result_bar(counts),
        **_count_labels(counts),
    }


def _count_labels(counts: Mapping[str, int]) -> dict[str, Any]:
    outcomes = [(counts[kind], label, kind) for kind, label in _RESULT_LABELS.items() if counts.get(kind)]
    summary = ", ".join(f"{count} {label.text}" for count, label, _ in outcomes)
    return {"outcomes": outcomes, "summary": summary or "nothing to check"}


def _result_bar(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the counts as parts of a bar of ``BAR_WIDTH`` units: tone, start (``x``) and width."""
    total, at, parts = sum(counts.values()), 0.0, []
    for kind, word in _RESULT_LABELS.items():
        if count := counts.get(kind):
            width = BAR_WIDTH * count / total
            parts.append({"tone": word.tone, "x": f"{at:.2f}", "width": f"{width:.2f}"})
            at += width
    return parts


def _outcome_context(outcome: SweepOutcome, result: str) -> dict[str, Any]:
    receipt = None
    if result != SKIPPED:
        receipt = _RESULT_LABELS.get(result) or receipt_kind_label(result)
    return {
        "outcome": outcome,
        "session": outcome.session,
        "observed": _OBSERVED_LABELS.get(outcome.observed, Label(outcome.observed or "–", "off")),
        "rule": humanize_code(outcome.rule),
        "why": rule_sentence(outcome.rule),
        "decision": decision_label(outcome.agent_action, outcome.strategy),
        "receipt": receipt,
        "reason": humanize_code(outcome.reason),
    }


MAX_RESTART_RECEIPTS = 50
"""Maximum number of receipts on the page."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def restart_control_plane(request: UserHttpRequest) -> HttpResponse:
    """Show the result of the last restart. A POST requests another one if ``restarts.can_order_restart`` allows it."""
    allowed = restarts.can_order_restart(request.user)
    if request.method in READ_METHODS:
        return render(request, "recovery/restart.html", {"allowed": allowed, **restart_context(request.user)})
    if not allowed:
        raise PermissionDenied
    restarts.order_restart(request.user)
    return redirect("restart")


def restart_context(user: User) -> dict[str, Any]:
    """Return the progress of the last requested restart, and the receipts of the user's teams since then."""
    alive = visible_executions(user).filter(status__in=(ExecutorStatus.STARTING, ExecutorStatus.READY)).count()
    return {"alive": alive, "ordered": restarts.is_ordered(), **_last_restart_receipts(user)}


def _last_restart_receipts(user: User) -> dict[str, Any]:
    last = restarts.last_ordered()
    if last is None:
        return {"last": None}
    supervisor = Supervisor.objects.filter(started_at__gte=last.killed_at).order_by("started_at").first()
    sweep = seconds_away = swept_at = seconds_until_swept = None
    if supervisor:
        sweep = RecoverySweep.objects.filter(trigger="boot", started_at__gte=last.killed_at).last()
        seconds_away = (supervisor.started_at - last.killed_at).total_seconds()
        swept_at = supervisor.swept_at
    if swept_at:
        seconds_until_swept = (swept_at - last.killed_at).total_seconds()
    receipts = ContinuityReceipt.objects.visible_to(user).with_history().filter(created_at__gte=last.killed_at)
    rows = list(
        receipts.select_related("session__task", "session__agent_profile").order_by("created_at")[:MAX_RESTART_RECEIPTS]
    )
    return {
        "last": last,
        "supervisor": supervisor,
        "seconds_away": seconds_away,
        "swept_at": swept_at,
        "seconds_until_swept": seconds_until_swept,
        "sweep": sweep,
        "rows": [{"receipt": row, "session": row.session, "word": receipt_label_in_history(row)} for row in rows],
        "unharmed": sum(row.kind == "reattached" for row in rows),
    }


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
    return part_response("restart", "recovery/restart_state.html", restart_context(request.user))


@never_cache
@require_GET
def sweep_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the newest sweeps."""
    return part_response("sweeps", "recovery/sweeps_list.html", sweeps_context(request.user))
