"""Coming in: by a one-time link (rule 42) or by password; and going out."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth import login as log_in
from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from sessions_app.models import LoginLink
from sessions_app.services.attempts import AttemptLimit, network_of
from sessions_app.services.login_attempts import KNOWN_FOR, WAIT, LoginAttempt, known_browser_cookie
from sessions_app.views.look import remember_look

MAY_SET_PASSWORD: Final = "may_set_password"  # noqa: S105
"""In a login that began with a link for it, the password is set without the old one, once."""
_BACKEND: Final = "django.contrib.auth.backends.ModelBackend"
KNOWN_BROWSER: Final = settings.KANDEV_COOKIE_PREFIX + "kandev_browser"
"""Says that somebody has logged in here before; it opens nothing."""
_wrong_links = AttemptLimit("login-link", 30, 60)


class Login(auth_views.LoginView):
    """The login page: how to get a link, and a form for those who have a password."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Check the password, unless too many were wrong here or for this name."""
        name, browser = request.POST.get("username", "")[:200], request.COOKIES.get(KNOWN_BROWSER, "")
        self.attempt = LoginAttempt(name, address_of(request), browser)
        return super().post(request, *args, **kwargs) if self.attempt.may_be_made() else _too_many(request)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Say that it was wrong, or that the next one has to wait."""
        return _too_many(self.request) if self.attempt.is_last else super().form_invalid(form)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Let them in, and have the pages look as they like them."""
        self.attempt.succeeded()
        response = super().form_valid(form)
        _remember(response, form.get_user())
        return response


def _too_many(request: HttpRequest) -> HttpResponse:
    return render(request, "login_throttled.html", {"minutes": WAIT // 60}, status=429)


def _remember(response: HttpResponse, user: Any) -> None:
    """How the pages are to look in this browser, and that its user has logged in here."""
    remember_look(response, user)
    response.set_cookie(
        KNOWN_BROWSER,
        known_browser_cookie(user.get_username()),
        max_age=KNOWN_FOR,
        secure=bool(settings.SESSION_COOKIE_SECURE),
        httponly=True,
        samesite="Lax",
    )


class Logout(auth_views.LogoutView):
    """Ends the browser's login; POST only."""

    next_page = "/login/"


def address_of(request: HttpRequest) -> str:
    """Who is calling; a trusted proxy has been asked for whom it does."""
    return str(request.META.get("REMOTE_ADDR", ""))


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def one_time_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Ask whether to log in; the secret is used up by the POST alone, so that a preview of the link costs nothing."""
    if request.method != "POST":
        link = LoginLink.live(secret)
        return (
            render(request, "login_confirm.html", {"link": link, "invited": link.user}) if link else _used_up(request)
        )
    link = LoginLink.consume(secret)
    if link is None:
        return _used_up(request)
    log_in(request, link.user, backend=_BACKEND)
    response = redirect("board")
    if link.purpose == LoginLink.Purpose.PASSWORD:
        request.session[MAY_SET_PASSWORD] = True
        response = redirect("settings-password")
    _remember(response, link.user)
    return response


def _used_up(request: HttpRequest) -> HttpResponse:
    if not _wrong_links.admits(network_of(address_of(request))):
        return _too_many(request)
    return render(request, "login_used.html", status=410)
