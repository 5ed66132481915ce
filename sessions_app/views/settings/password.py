"""A new password, and ending logins elsewhere."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.models import LoginLink
from sessions_app.services.attempts import AttemptLimit
from sessions_app.services.login_attempts import WAIT
from sessions_app.services.logins import end_other_logins, other_logins
from sessions_app.views.login import MAY_SET_PASSWORD
from sessions_app.views.settings.sections import show

MOST: Final = 5
"""Wrong old passwords of one user within ``WAIT`` seconds."""
_attempts = AttemptLimit("password-change", MOST, WAIT)


@never_cache
def password(request: HttpRequest) -> HttpResponse:
    """Show what is known of one's logins; a POST sets a new password, which ends all the others."""
    form = _form(request, request.POST if request.method == "POST" else None)
    if request.method != "POST":
        return _page(request, form)
    if not _attempts.admits(str(request.user.pk)):
        said = f"There were too many wrong passwords. Nothing was changed; try again in {WAIT // 60} minutes."
        return _page(request, _form(request, None), said, 429)
    if not form.is_valid():
        if "old_password" not in form.errors:
            _attempts.forgive(str(request.user.pk))
        return _page(request, form, status=422)
    _set(request, form)
    messages.success(request, "Your password is changed. You are logged out everywhere else.")
    return redirect("settings-password")


def _form(request: HttpRequest, data: Any) -> SetPasswordForm[Any]:
    """The old password is asked for where there is one, but after a link that was made to set a new one."""
    user: Any = request.user  # nobody else is let in
    asks = user.has_usable_password() and not request.session.get(MAY_SET_PASSWORD)
    form: SetPasswordForm[Any] = (PasswordChangeForm if asks else SetPasswordForm)(user, data)
    first, second = form.fields["new_password1"], form.fields["new_password2"]
    first.help_text = "At least 8 characters, not one that many use, and nothing like your name or e-mail."
    second.label, second.help_text = "The new password again", ""
    return form


def _page(request: HttpRequest, form: Any, refused: str = "", status: int = 200) -> HttpResponse:
    user: Any = request.user
    context = {
        "form": form,
        "refused": refused,
        "has_password": user.has_usable_password(),
        "may_set": bool(request.session.get(MAY_SET_PASSWORD)),
        "elsewhere": other_logins(user, request.session.session_key),
    }
    return show(request, "settings/password.html", "settings-password", context, status)


def _set(request: HttpRequest, form: Any) -> None:
    user = form.save()
    _attempts.forgive(str(user.pk))
    request.session.pop(MAY_SET_PASSWORD, None)
    update_session_auth_hash(request, user)
    end_other_logins(user, request.session.session_key)
    LoginLink.forget(user)


@require_POST
def end_logins(request: HttpRequest) -> HttpResponse:
    """Log out everywhere but here."""
    count = end_other_logins(request.user, request.session.session_key)
    messages.success(request, f"{count} other login{'s' if count != 1 else ''} ended.")
    return redirect("settings-password")
