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

from sessions_app.accounts.models import Preferences, time_zone_names

THEME_COOKIE: Final = "kandev_theme"
TIME_ZONE_COOKIE: Final = "kandev_zone"
_COOKIE_MAX_AGE: Final = 365 * 86_400


def appearance(request: HttpRequest) -> dict[str, str]:
    """For every template: ``theme`` is system, light or dark; ``zone`` a time zone, or empty for the browser's."""
    return {
        "theme": current_theme(request),
        "zone": _known_or_default(request.COOKIES.get(TIME_ZONE_COOKIE, ""), time_zone_names(), ""),
    }


def current_theme(request: HttpRequest) -> str:
    """What this browser shows."""
    return _known_or_default(request.COOKIES.get(THEME_COOKIE, ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)


def _known_or_default(value: str, known: Any, default: str) -> str:
    return value if value in known else default


def remember_appearance(response: HttpResponse, user: Any) -> None:
    """This browser takes on what ``user`` has chosen; without a choice it stays as it is."""
    chosen = Preferences.objects.filter(user_id=user.pk).first()
    if chosen is not None:
        _set_cookie(response, THEME_COOKIE, chosen.theme)
        _set_cookie(response, TIME_ZONE_COOKIE, chosen.time_zone)


def _set_cookie(response: HttpResponse, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_COOKIE_MAX_AGE, secure=bool(settings.SESSION_COOKIE_SECURE), httponly=True, samesite="Lax"
    )


@login_not_required
@require_POST
def change_theme(request: HttpRequest) -> HttpResponse:
    """The switch in the head of every page; where somebody is logged in it is their choice everywhere."""
    theme = _known_or_default(request.POST.get("theme", ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)
    if request.user.is_authenticated:
        Preferences.objects.update_or_create(user_id=request.user.pk, defaults={"theme": theme})
    response = HttpResponse(status=204) if "quiet" in request.POST else redirect(_previous_page(request))
    _set_cookie(response, THEME_COOKIE, theme)
    return response


def _previous_page(request: HttpRequest) -> str:
    """The page of ours that the switch was on."""
    there = request.POST.get("next", "")
    return there if url_has_allowed_host_and_scheme(there, {request.get_host()}, request.is_secure()) else "/"
