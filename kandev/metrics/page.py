"""``/metrics``: with the token of this deployment, or without one from this machine alone."""

from __future__ import annotations

import ipaddress
import secrets
from typing import Final

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.cache import cache
from django.db import Error
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from kandev.metrics.reading import read
from kandev.metrics.rendering import CONTENT_TYPE, render, render_without_database
from sessions_app.models.storage import trouble_of

KEPT: Final = 5
"""Seconds for which a text is given again: who asks more often costs nothing."""
_FORWARDED: Final = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_X_FORWARDED_HOST", "HTTP_VIA")
"""Headers of a proxy, behind which everybody would look like this machine."""


@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """200 with the text; 401 without the token; 403 for another machine where there is none.

    Without a database it is 200 too: whoever watches must not take that for a web process that is gone.
    """
    if settings.KANDEV_METRICS_TOKEN:
        if not _has_token(request):
            answer = HttpResponse("The metrics want their token.\n", status=401, content_type="text/plain")
            answer["WWW-Authenticate"] = 'Bearer realm="metrics"'
            return answer
    elif not _is_from_here(request):
        said = "Without KANDEV_METRICS_TOKEN the metrics are for this machine alone.\n"
        return HttpResponse(said, status=403, content_type="text/plain")
    try:
        text = cache.get_or_set("kandev-metrics", lambda: render(read()), KEPT)
    except Error as error:
        if trouble_of(error) is None:
            raise
        text = render_without_database()
    return HttpResponse(text, content_type=CONTENT_TYPE)


def _has_token(request: HttpRequest) -> bool:
    scheme, _, said = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    wanted = settings.KANDEV_METRICS_TOKEN.encode()
    return scheme.lower() == "bearer" and secrets.compare_digest(said.strip().encode(), wanted)


def _is_from_here(request: HttpRequest) -> bool:
    """The other end of the connection is this machine, and nobody stands between; no header can say so."""
    if any(name in request.META for name in _FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
