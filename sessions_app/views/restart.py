"""Restarting the control plane now, and seeing what that does to the agents: nothing."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from executors_app.domain import ExecutorStatus
from sessions_app.models import ContinuityReceipt, RecoverySweep, Supervisor
from sessions_app.services import restarting
from sessions_app.services.catalogue import visible_executions
from sessions_app.views.found import READS
from sessions_app.views.wording import receipt_word

SHOWN = 50
"""Receipts on the page."""


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def restart(request: HttpRequest) -> HttpResponse:
    """Show what the last restart came to; a POST of staff orders one, where ``serve`` keeps the processes."""
    allowed = restarting.may_restart(request.user)
    if request.method in READS:
        return render(request, "restart.html", {"allowed": allowed, **restart_context(request.user)})
    if not allowed:
        raise PermissionDenied
    restarting.order_restart(request.user)
    return redirect("restart")


def restart_context(user: Any) -> dict[str, Any]:
    """How far the last restart is, and the receipts of the user's teams since."""
    alive = visible_executions(user).filter(status__in=(ExecutorStatus.STARTING, ExecutorStatus.READY)).count()
    return {"alive": alive, "ordered": restarting.is_ordered(), **_last(user)}


def _last(user: Any) -> dict[str, Any]:
    last = restarting.last_ordered()
    if last is None:
        return {"last": None}
    back = Supervisor.objects.filter(started_at__gte=last.killed_at).order_by("started_at").first()
    sweep = RecoverySweep.objects.filter(trigger="boot", started_at__gte=last.killed_at).last() if back else None
    receipts = ContinuityReceipt.objects.visible_to(user).filter(created_at__gte=last.killed_at)
    rows = list(receipts.select_related("session__task", "session__agent_profile").order_by("created_at")[:SHOWN])
    swept = back.swept_at if back else None
    return {
        "last": last,
        "back": back,
        "away": (back.started_at - last.killed_at).total_seconds() if back else None,
        "swept": swept,
        "took": (swept - last.killed_at).total_seconds() if swept else None,
        "sweep": sweep,
        "rows": [{"receipt": row, "session": row.session, "word": receipt_word(row)} for row in rows],
        "unharmed": sum(row.kind == "reattached" for row in rows),
    }
