"""Pages to log in, by a one-time link or by password, and to log out."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth import login as log_in
from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from sessions_app.accounts.client_address import network_of_address
from sessions_app.accounts.models import LoginLink
from sessions_app.accounts.password_hasher import TooManyPasswords, known_caller
from sessions_app.accounts.rate_limits import (
    KNOWN_BROWSER_MAX_AGE,
    LOGIN_WAIT,
    AttemptLimit,
    LoginAttempt,
    make_known_browser_cookie,
)
from sessions_app.accounts.views.settings import remember_appearance

MAY_SET_PASSWORD_KEY: Final = "may_set_password"  # noqa: S105
"""Session key: this login began with a link to set a password, so the old password is not asked for, once."""
_BACKEND: Final = "django.contrib.auth.backends.ModelBackend"
KNOWN_BROWSER_COOKIE: Final = settings.KANDEV_COOKIE_PREFIX + "kandev_browser"
"""Cookie of browsers that have logged in before; it raises the limit of attempts and gives no access."""
_wrong_link_limit = AttemptLimit("login-link", 30, 60)


class LoginView(auth_views.LoginView):
    """The login page: how to get a link, and a form for those who have a password."""

    template_name = "accounts/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Check the password, unless there were too many wrong ones from this network or for this name."""
        name, browser = request.POST.get("username", "")[:200], request.COOKIES.get(KNOWN_BROWSER_COOKIE, "")
        self.attempt = LoginAttempt(name, client_address(request), browser)
        if not self.attempt.count_and_check():
            return _too_many_attempts(request)
        try:
            if self.attempt.is_known:
                with known_caller():
                    return super().post(request, *args, **kwargs)
            return super().post(request, *args, **kwargs)
        except TooManyPasswords:
            self.attempt.uncount()
            raise

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Report a wrong password, or that there were too many."""
        if self.attempt.is_last:
            return _too_many_attempts(self.request)
        return super().form_invalid(form)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Log in, and apply the user's theme and time zone."""
        self.attempt.uncount()
        response = super().form_valid(form)
        _remember_browser(response, form.get_user())
        return response


def _too_many_attempts(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/login_throttled.html", {"minutes": LOGIN_WAIT // 60}, status=429)


def _remember_browser(response: HttpResponse, user: User) -> None:
    """Set the cookies for theme, time zone and known browser."""
    remember_appearance(response, user)
    response.set_cookie(
        KNOWN_BROWSER_COOKIE,
        make_known_browser_cookie(user.get_username()),
        max_age=KNOWN_BROWSER_MAX_AGE,
        secure=bool(settings.SESSION_COOKIE_SECURE),
        httponly=True,
        samesite="Lax",
    )


class LogoutView(auth_views.LogoutView):
    """Ends the browser's login; POST only."""

    next_page = "/login/"


def client_address(request: HttpRequest) -> str:
    """Return the client's address, as reported by a trusted proxy if there is one."""
    return str(request.META.get("REMOTE_ADDR", ""))


@login_not_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def confirm_login_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Ask for confirmation, and log in on POST. Only the POST uses up the secret, so link previews cannot."""
    if request.method != "POST":
        link = LoginLink.live(secret)
        if link:
            return render(request, "accounts/login_confirm.html", {"link": link, "invited": link.user})
        return _invalid_link(request)
    link = LoginLink.consume(secret)
    if link is None:
        return _invalid_link(request)
    log_in(request, link.user, backend=_BACKEND)
    response = redirect("board")
    if link.purpose == LoginLink.Purpose.PASSWORD:
        request.session[MAY_SET_PASSWORD_KEY] = True
        response = redirect("settings-password")
    _remember_browser(response, link.user)
    return response


def _invalid_link(request: HttpRequest) -> HttpResponse:
    if not _wrong_link_limit.admits(network_of_address(client_address(request))):
        return _too_many_attempts(request)
    return render(request, "accounts/login_used.html", status=410)
