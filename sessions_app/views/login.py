"""Coming in: by a one-time link (rule 42) or by password; and going out."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth import login as log_in
from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from sessions_app.models import LoginLink

MOST_FAILURES: Final = 20
"""Wrong passwords from one address, after which it has to wait."""
WAIT: Final = 300
"""Seconds."""
_BACKEND: Final = "django.contrib.auth.backends.ModelBackend"


class Login(auth_views.LoginView):
    """The login page: how to get a link, and a form for those who have a password."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Check the password, unless this address has been wrong too often."""
        if cache.get(_failures_key(request), 0) >= MOST_FAILURES:
            return render(request, "login_throttled.html", {"minutes": WAIT // 60}, status=429)
        return super().post(request, *args, **kwargs)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Count the failure."""
        key = _failures_key(self.request)
        cache.add(key, 0, WAIT)
        cache.incr(key)
        return super().form_invalid(form)


class Logout(auth_views.LogoutView):
    """Ends the browser's login; POST only."""

    next_page = "/login/"


def _failures_key(request: HttpRequest) -> str:
    return f"login-failures:{request.META.get('REMOTE_ADDR', '')}"


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def one_time_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Ask whether to log in; the secret is used up by the POST alone, so that a preview of the link costs nothing."""
    if request.method != "POST":
        user = LoginLink.user_of(secret)
        return render(request, "login_confirm.html", {"invited": user}) if user else _used_up(request)
    user = LoginLink.consume(secret)
    if user is None:
        return _used_up(request)
    log_in(request, user, backend=_BACKEND)
    return redirect("board")


def _used_up(request: HttpRequest) -> HttpResponse:
    return render(request, "login_used.html", status=410)
