"""The sweeps: when the supervisor looked at everything that claims to run, and what it decided."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from sessions_app.models import ContinuityReceipt, RecoverySweep, SweepOutcome, SweepRequest
from sessions_app.services.catalogue import SECRETS
from sessions_app.services.sweeps import ask_for_sweep
from sessions_app.views.found import READS
from sessions_app.views.wording import OUTCOMES, SWEEP_TRIGGERS, decision_words, receipt_kind_word, spelled

SHOWN: Final = 50
"""Sweeps on the page, the newest."""
ROWS_SHOWN: Final = 500
_SECRETS: Final = tuple(f"session__{name}" for name in SECRETS)
BAR_WIDTH: Final = 100.0


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sweeps(request: HttpRequest) -> HttpResponse:
    """Show the newest sweeps; a POST of staff asks for another one."""
    if request.method in READS:
        return render(request, "sweeps.html", sweeps_context())
    if not request.user.is_staff:
        raise PermissionDenied
    ask_for_sweep(request.user)
    messages.info(request, "A sweep was asked for. It appears here when it is done.")
    return redirect("sweeps")


def sweeps_context() -> dict[str, Any]:
    """The newest sweeps, and whether one that was asked for is still to come."""
    return {
        "sweeps": [_shown(row) for row in RecoverySweep.objects.all()[:SHOWN]],
        "awaited": SweepRequest.objects.filter(done_at=None, dry_run=False).exists(),
    }


@never_cache
@require_safe
def sweep(request: HttpRequest, sweep_id: uuid.UUID) -> HttpResponse:
    """Show one sweep and what it decided for the sessions of the user's teams."""
    row = get_object_or_404(RecoverySweep, id=sweep_id)
    outcomes = SweepOutcome.objects.visible_to(request.user).filter(sweep=row)
    found = outcomes.select_related("session__task", "session__agent_profile").defer(*_SECRETS)[:ROWS_SHOWN]
    later = _receipts_since(request.user, row, found)
    rows = [_row(one, one.receipt_kind or later.get(one.session_id, "")) for one in found]
    context = {"told": _shown(row), "rows": rows, "count": outcomes.count()}
    return render(request, "sweep.html", context)


def _shown(row: RecoverySweep) -> dict[str, Any]:
    counts = {kind: int(row.outcomes.get(kind, 0)) for kind in OUTCOMES}
    told = [(count, OUTCOMES[kind]) for kind, count in counts.items() if count]
    return {
        "sweep": row,
        "trigger": SWEEP_TRIGGERS.get(row.trigger, row.trigger),
        "outcomes": told,
        "bar": _bar(counts),
        "summary": ", ".join(f"{count} {word.text}" for count, word in told) or "nothing to look at",
    }


def _bar(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """The counts as parts of a bar: tone, start and width, in units of the drawing."""
    total, at, parts = sum(counts.values()), 0.0, []
    for kind, count in counts.items():
        if count:
            width = BAR_WIDTH * count / total
            parts.append({"tone": OUTCOMES[kind].tone, "x": f"{at:.2f}", "width": f"{width:.2f}"})
            at += width
    return parts


def _receipts_since(user: Any, row: RecoverySweep, outcomes: Iterable[SweepOutcome]) -> dict[uuid.UUID, str]:
    """A start that a sweep orders ends after it: the first receipt since of every session that it ordered one for."""
    ordered = [one.session_id for one in outcomes if one.agent_action in ("resume", "start_workspace")]
    found = ContinuityReceipt.objects.visible_to(user).filter(session_id__in=ordered, created_at__gte=row.started_at)
    return dict(found.order_by("-created_at").values_list("session_id", "kind"))


def _row(outcome: SweepOutcome, receipt: str) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "session": outcome.session,
        "rule": spelled(outcome.rule),
        "decision": decision_words(outcome.agent_action, outcome.strategy),
        "receipt": receipt_kind_word(receipt) if receipt else None,
        "reason": spelled(outcome.reason),
    }
