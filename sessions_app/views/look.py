"""Light or dark, and whose clock: kept in cookies, so that a page is right before any script runs.

The choice itself is a row (``models.Preferences``) that comes along to every browser at its login.
"""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from sessions_app.models import Preferences
from sessions_app.models.preferences import time_zones

THEME: Final = "kandev_theme"
ZONE: Final = "kandev_zone"
_YEAR: Final = 365 * 86_400


def look(request: HttpRequest) -> dict[str, str]:
    """For every template: ``theme`` is system, light or dark; ``zone`` a time zone, or empty for the browser's."""
    return {"theme": theme_of(request), "zone": _among(request.COOKIES.get(ZONE, ""), time_zones(), "")}


def theme_of(request: HttpRequest) -> str:
    """What this browser shows."""
    return _among(request.COOKIES.get(THEME, ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)


def _among(value: str, known: Any, default: str) -> str:
    return value if value in known else default


def remember_look(response: HttpResponse, user: Any) -> None:
    """This browser takes on what ``user`` has chosen; without a choice it stays as it is."""
    chosen = Preferences.objects.filter(user_id=user.pk).first()
    if chosen is not None:
        _keep(response, THEME, chosen.theme)
        _keep(response, ZONE, chosen.time_zone)


def _keep(response: HttpResponse, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_YEAR, secure=bool(settings.SESSION_COOKIE_SECURE), httponly=True, samesite="Lax"
    )


@login_not_required
@require_POST
def change_theme(request: HttpRequest) -> HttpResponse:
    """The switch in the head of every page; where somebody is logged in it is their choice everywhere."""
    theme = _among(request.POST.get("theme", ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)
    if request.user.is_authenticated:
        Preferences.objects.update_or_create(user_id=request.user.pk, defaults={"theme": theme})
    response = HttpResponse(status=204) if "quiet" in request.POST else redirect(_back(request))
    _keep(response, THEME, theme)
    return response


def _back(request: HttpRequest) -> str:
    """The page of ours that the switch was on."""
    there = request.POST.get("next", "")
    return there if url_has_allowed_host_and_scheme(there, {request.get_host()}, request.is_secure()) else "/"
