"""The system page for staff: hosts, their processes, and what is down."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_safe

from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.hosts import services
from sessions_app.pages.shortcuts import part_response


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
    return {"hosts": services.list_hosts(), "down": services.describe_down()}
