"""The system page for staff: hosts, their processes, and what is down."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.hosts import lost_clusters, schedules, services
from sessions_app.hosts.actions import ACTIONS
from sessions_app.hosts.cluster_nodes import WHY_FORCE, list_cluster_nodes
from sessions_app.hosts.models import Host
from sessions_app.hosts.remaining import Remaining, remaining_on
from sessions_app.hosts.services import HostReport
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.maintenance.backups import newest_backup, newest_backups
from sessions_app.pages.shortcuts import part_response

MAX_DRAINING_SHOWN: Final = 20
"""Draining hosts whose sessions are named on the page: each takes a few queries."""


@dataclass(frozen=True, slots=True)
class HostCard:
    """A host on the page."""

    report: HostReport
    remaining: Remaining | None
    """What still runs there; None unless it drains."""


@never_cache
@require_safe
def show_system(request: UserHttpRequest) -> HttpResponse:
    """Show the hosts; for staff only."""
    return render(request, "hosts/system.html", _context(request))


@never_cache
@require_GET
def system_updates(request: UserHttpRequest) -> JsonResponse:
    """Return the current hosts; for staff only."""
    return part_response("system", "hosts/system_list.html", _context(request))


def _context(request: UserHttpRequest) -> dict[str, Any]:
    if not request.user.is_staff:
        raise PermissionDenied
    reports = services.list_hosts()
    draining = [report.host for report in reports if report.service_state == "draining"][:MAX_DRAINING_SHOWN]
    cards = [HostCard(report, remaining_on([report.host]) if report.host in draining else None) for report in reports]
    return {
        "hosts": cards,
        "down": services.describe_down(),
        "late_since": schedules.late_since(),
        "nodes": list_cluster_nodes(),
        "why_force": WHY_FORCE,
        "unreached_clusters": lost_clusters.list_unreached_clusters(),
        "sizes": services.list_data_sizes(),
        "backup": newest_backup(),
        "host_backups": newest_backups(services.hosts_in_use()),
    }


@require_POST
def declare_cluster_lost(request: UserHttpRequest, executor_id: uuid.UUID) -> HttpResponse:
    """Declare that the cluster with the posted ``namespace`` is gone for good; for staff only."""
    if not request.user.is_staff:
        raise PermissionDenied
    try:
        count = lost_clusters.declare_lost(executor_id, request.POST.get("namespace", ""), request.user)
    except SessionsError as error:
        messages.error(request, error.message)
    else:
        said = plural(count, "1 session counts", "{} sessions count")
        messages.success(request, f"The cluster is lost. {said} as ended, and can start again within a minute.")
    return redirect("system")


@require_POST
def act_on_host(request: UserHttpRequest, host_id: int, action: str) -> HttpResponse:
    """Carry out one of ``ACTIONS``, and report it; for staff only. 404 for any other."""
    if not request.user.is_staff:
        raise PermissionDenied
    if action not in ACTIONS:
        raise Http404(action)
    host = get_object_or_404(Host, pk=host_id)
    try:
        ACTIONS[action].carry_out(host.name, request.user)
    except SessionsError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, ACTIONS[action].done.format(name=host.name))
    return redirect("system")
