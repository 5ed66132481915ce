"""The sweeps: when the supervisor looked at everything that claims to run, and what it decided."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from executors_app.domain import Observed
from sessions_app.models import RecoverySweep, SweepOutcome, SweepRequest
from sessions_app.services import sweeps as service
from sessions_app.services.sweep_results import result_of
from sessions_app.views.found import READS
from sessions_app.views.timeline_words import why
from sessions_app.views.wording import (
    OUTCOMES,
    SWEEP_TRIGGERS,
    Word,
    decision_words,
    receipt_kind_word,
    spelled,
)

SHOWN: Final = 50
"""Sweeps on the page, the newest."""
ROWS_SHOWN: Final = 200
BAR_WIDTH: Final = 100.0
_TEXT_LIMIT: Final = 200
_RESULTS: Final[Mapping[str, Word]] = {**OUTCOMES, service.UNDER_WAY: Word("still starting", "busy")}
_SEEN: Final[Mapping[str, Word]] = {
    Observed.ALIVE: Word("Alive", "good"),
    Observed.DEAD: Word("Dead", "bad"),
    Observed.UNKNOWN: Word("Unknown", "ask"),
}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sweeps(request: HttpRequest) -> HttpResponse:
    """Show the newest sweeps; a POST of staff asks for another one, with ``dry_run`` for one that writes nothing."""
    if request.method in READS:
        return render(request, "sweeps.html", sweeps_context(request.user))
    if not request.user.is_staff:
        raise PermissionDenied
    asked = service.ask_for_sweep(request.user, dry_run=bool(request.POST.get("dry_run")))
    messages.info(request, "It was asked for. What comes of it appears here.")
    return redirect("sweep-request", asked.id)


def sweeps_context(user: Any) -> dict[str, Any]:
    """The newest sweeps with what the user's sessions came to, and whether one that was asked for is still to come."""
    rows = list(RecoverySweep.objects.all()[: SHOWN + 1])
    counts = service.counts_of(user, rows[:SHOWN])
    return {
        "sweeps": [_shown(row, counts[row.id]) for row in rows[:SHOWN]],
        "older": len(rows) > SHOWN,
        "awaited": SweepRequest.objects.filter(done_at=None, dry_run=False).exists(),
    }


@never_cache
@require_safe
def sweep(request: HttpRequest, sweep_id: uuid.UUID) -> HttpResponse:
    """Show one sweep and what it decided for the sessions of the user's teams; ``q``, ``seen``, ``came`` narrow it."""
    row = get_object_or_404(RecoverySweep, id=sweep_id)
    wanted, number = _wanted(request), _page(request)
    found = service.outcomes_of(request.user, row, wanted, start=(number - 1) * ROWS_SHOWN, limit=ROWS_SHOWN)
    query = {name: value for name, value in (("q", wanted.text), ("seen", wanted.seen), ("came", wanted.came)) if value}
    context = {
        "told": _shown(row, found.counts),
        "rows": [_row(outcome, came) for outcome, came in found.rows],
        "count": found.count,
        "total": found.total,
        "wanted": wanted,
        "filtered": bool(query),
        "seen_choices": [(value, word.text) for value, word in _SEEN.items()],
        "came_choices": [(kind, word.text) for kind, word in _RESULTS.items()],
        "before": urlencode({**query, "page": number - 1}) if number > 1 else "",
        "behind": urlencode({**query, "page": number + 1}) if found.count > number * ROWS_SHOWN else "",
        "older": _neighbour(request.user, row),
    }
    return render(request, "sweep.html", context)


def _wanted(request: HttpRequest) -> service.Wanted:
    came, seen = request.GET.get("came", ""), request.GET.get("seen", "")
    return service.Wanted(
        text=request.GET.get("q", "").replace("\0", "").strip()[:_TEXT_LIMIT],
        seen=seen if seen in _SEEN else "",
        came=came if came in _RESULTS else "",
    )


def _page(request: HttpRequest) -> int:
    given = request.GET.get("page", "1")
    return max(int(given), 1) if given.isascii() and given.isdigit() and len(given) < 6 else 1


def _neighbour(user: Any, row: RecoverySweep) -> dict[str, Any] | None:
    """The sweep before this one for the same reason, to compare it with."""
    earlier = RecoverySweep.objects.filter(trigger=row.trigger, started_at__lt=row.started_at).first()
    return _shown(earlier, service.counts_of(user, [earlier])[earlier.id]) if earlier else None


@never_cache
@require_safe
def requested(request: HttpRequest, request_id: uuid.UUID) -> HttpResponse:
    """Show how far a sweep is that somebody asked for, and what came of it."""
    row = get_object_or_404(SweepRequest, id=request_id)
    return render(request, "sweep_request.html", requested_context(request.user, row))


def requested_context(user: Any, row: SweepRequest) -> dict[str, Any]:
    """Its progress; once it is done, its counts and the rows of the user's teams."""
    report, rows = row.report or {}, service.report_for(user, row)
    counts = Counter(one.get("result") or result_of(one) for one in rows)
    return {
        "asked": row,
        "done": row.done_at is not None,
        "report": report,
        "shown": {**_counted(counts), "bar": _bar(counts)},
        "rows": [_report_row(one) for one in rows[:ROWS_SHOWN]],
    }


def _report_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: row.get(name, "") for name in ("session_id", "task_id", "task_title", "error_message")},
        "seen": _SEEN.get(row.get("observed", ""), Word(row.get("observed") or "–", "off")),
        "why": why(row.get("rule", "")),
        "decision": decision_words(row.get("agent_action", ""), row.get("strategy", "")),
    }


def _shown(row: RecoverySweep, counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "sweep": row,
        "trigger": SWEEP_TRIGGERS.get(row.trigger, row.trigger),
        "bar": _bar(counts),
        **_counted(counts),
    }


def _counted(counts: Mapping[str, int]) -> dict[str, Any]:
    told = [(counts[kind], word, kind) for kind, word in _RESULTS.items() if counts.get(kind)]
    return {
        "outcomes": told,
        "summary": ", ".join(f"{count} {word.text}" for count, word, _ in told) or "nothing to look at",
    }


def _bar(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """The counts as parts of a bar: tone, start and width, in units of the drawing."""
    total, at, parts = sum(counts.values()), 0.0, []
    for kind, word in _RESULTS.items():
        if count := counts.get(kind):
            width = BAR_WIDTH * count / total
            parts.append({"tone": word.tone, "x": f"{at:.2f}", "width": f"{width:.2f}"})
            at += width
    return parts


def _row(outcome: SweepOutcome, came: str) -> dict[str, Any]:
    told = None if came == service.SKIPPED else _RESULTS.get(came) or receipt_kind_word(came)
    return {
        "outcome": outcome,
        "session": outcome.session,
        "seen": _SEEN.get(outcome.observed, Word(outcome.observed or "–", "off")),
        "rule": spelled(outcome.rule),
        "why": why(outcome.rule),
        "decision": decision_words(outcome.agent_action, outcome.strategy),
        "receipt": told,
        "reason": spelled(outcome.reason),
    }
