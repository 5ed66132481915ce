"""Theme and time zone: kept in cookies, so that a page is rendered correctly before any script runs.

The user's choice is stored in ``models.Preferences`` and copied to the cookies of each browser at login.
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
    """Add to every template ``theme`` (system, light or dark) and ``zone`` (a time zone; empty for the browser's)."""
    return {
        "theme": current_theme(request),
        "zone": _known_or_default(request.COOKIES.get(TIME_ZONE_COOKIE, ""), time_zone_names(), ""),
    }


def current_theme(request: HttpRequest) -> str:
    """Return the theme of this browser, from its cookie."""
    return _known_or_default(request.COOKIES.get(THEME_COOKIE, ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)


def _known_or_default(value: str, known: Any, default: str) -> str:
    return value if value in known else default


def remember_appearance(response: HttpResponse, user: Any) -> None:
    """Set the cookies to the choice of ``user``; without a stored choice, leave them unchanged."""
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
    """Handle the theme switch in the page header. For a logged-in user, also store the choice for other browsers."""
    theme = _known_or_default(request.POST.get("theme", ""), Preferences.Theme.values, Preferences.Theme.SYSTEM)
    if request.user.is_authenticated:
        Preferences.objects.update_or_create(user_id=request.user.pk, defaults={"theme": theme})
    response = HttpResponse(status=204) if "quiet" in request.POST else redirect(_previous_page(request))
    _set_cookie(response, THEME_COOKIE, theme)
    return response


def _previous_page(request: HttpRequest) -> str:
    """Return the submitted URL of the page with the switch, or ``/`` if it leads to another site."""
    there = request.POST.get("next", "")
    return there if url_has_allowed_host_and_scheme(there, {request.get_host()}, request.is_secure()) else "/"
