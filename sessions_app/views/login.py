"""Coming in: by a one-time link (rule 42) or by password; and going out."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth import login as log_in
from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from sessions_app.models import LoginLink
from sessions_app.services.throttle import Throttle
from sessions_app.views.look import remember_look

WAIT: Final = 300
"""Seconds in which attempts are counted, and for which who made too many has to wait."""
MOST_OF_ADDRESS: Final = 20
"""Wrong passwords from one address, whatever the names."""
MOST_OF_NAME: Final = 10
"""Wrong passwords for one name, wherever they come from and whether or not anybody has that name."""
MAY_SET_PASSWORD: Final = "may_set_password"  # noqa: S105
"""In a login that began with a link for it, the password is set without the old one, once."""
_BACKEND: Final = "django.contrib.auth.backends.ModelBackend"
_addresses = Throttle("login-address", MOST_OF_ADDRESS, WAIT)
_names = Throttle("login-name", MOST_OF_NAME, WAIT)


class Login(auth_views.LoginView):
    """The login page: how to get a link, and a form for those who have a password."""

    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Check the password, unless this address or this name was wrong too often."""
        if not (_addresses.admits(address_of(request)) and _names.admits(_name(request))):
            return render(request, "login_throttled.html", {"minutes": WAIT // 60}, status=429)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Let them in, and have the pages look as they like them."""
        _addresses.forgive(address_of(self.request))
        _names.forgive(_name(self.request))
        response = super().form_valid(form)
        remember_look(response, form.get_user())
        return response


class Logout(auth_views.LogoutView):
    """Ends the browser's login; POST only."""

    next_page = "/login/"


def address_of(request: HttpRequest) -> str:
    """Who is calling; a trusted proxy has been asked for whom it does."""
    return str(request.META.get("REMOTE_ADDR", ""))


def _name(request: HttpRequest) -> str:
    return request.POST.get("username", "")[:200]


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
    remember_look(response, link.user)
    return response


def _used_up(request: HttpRequest) -> HttpResponse:
    return render(request, "login_used.html", status=410)
