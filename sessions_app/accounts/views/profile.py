"""Settings of the current user: profile, password and other logins, and API tokens."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm, SetPasswordForm
from django.contrib.auth.models import User
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.accounts import credentials
from sessions_app.accounts.credentials import count_other_logins, end_other_logins
from sessions_app.accounts.forms import ProfileForm, TokenForm
from sessions_app.accounts.models import ApiToken, LoginLink, Preferences
from sessions_app.accounts.password_hasher import TooManyPasswords
from sessions_app.accounts.rate_limits import LOGIN_WAIT, AttemptLimit
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.accounts.views.login import MAY_SET_PASSWORD_KEY
from sessions_app.accounts.views.settings import current_theme, remember_appearance, render_settings
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import Conflict, NotFound


def redirect_to_settings(request: UserHttpRequest) -> HttpResponse:
    """Redirect to the first settings page."""
    return redirect("settings-profile")


@never_cache
def edit_profile(request: UserHttpRequest) -> HttpResponse:
    """Show name, e-mail address, time zone and theme. A POST saves them."""
    user: User = request.user  # LoginRequiredMiddleware has let in only a logged-in user
    chosen = Preferences.objects.filter(user_id=user.pk).first() or Preferences(
        user_id=user.pk, theme=current_theme(request)
    )
    if request.method != "POST":
        form = ProfileForm(user, chosen)
        return render_settings(request, "accounts/profile.html", "settings-profile", {"form": form})
    form = ProfileForm(user, chosen, request.POST)
    if not form.is_valid():
        return render_settings(request, "accounts/profile.html", "settings-profile", {"form": form}, 422)
    form.save()
    messages.success(request, "Your profile is saved.")
    response = redirect("settings-profile")
    remember_appearance(response, user)
    return response


MAX_PASSWORD_ATTEMPTS: Final = 5
"""Wrong old passwords of one user within ``LOGIN_WAIT`` seconds."""
_password_change_limit = AttemptLimit("password-change", MAX_PASSWORD_ATTEMPTS, LOGIN_WAIT)


@never_cache
def change_password(request: UserHttpRequest) -> HttpResponse:
    """Show password and logins. A POST sets a new password, which ends all other logins."""
    if request.method != "POST":
        return _render_password_page(request, _password_form(request, None))
    if not _password_change_limit.admits(str(request.user.pk)):
        message = f"Too many wrong passwords. Nothing was changed; try again in {LOGIN_WAIT // 60} minutes."
        return _render_password_page(request, _password_form(request, None), message, 429)
    form = _password_form(request, request.POST)
    # Counted before the check, so that concurrent requests cannot exceed the limit; only wrong passwords stay counted.
    try:
        if not form.is_valid():
            if "old_password" not in form.errors:
                _password_change_limit.forgive(str(request.user.pk))
            return _render_password_page(request, form, status=422)
        _set_password(request, form)
    except TooManyPasswords:
        _password_change_limit.forgive(str(request.user.pk))
        raise
    messages.success(request, "Your password is changed. You are logged out everywhere else.")
    return redirect("settings-password")


def _password_form(request: UserHttpRequest, data: Any) -> SetPasswordForm[Any]:
    """Return the form for a new password.

    It asks for the old one if there is one, except after a login with a link for setting a new password.
    """
    user: User = request.user  # LoginRequiredMiddleware has let in only a logged-in user
    form: SetPasswordForm[Any]
    if user.has_usable_password() and not request.session.get(MAY_SET_PASSWORD_KEY):
        form = PasswordChangeForm(user, data)
    else:
        form = SetPasswordForm(user, data)
    first, second = form.fields["new_password1"], form.fields["new_password2"]
    first.help_text = "At least 8 characters. Not a common password, and not similar to your name or e-mail address."
    second.label, second.help_text = "Repeat the new password", ""
    return form


def _render_password_page(request: UserHttpRequest, form: Any, refused: str = "", status: int = 200) -> HttpResponse:
    user: User = request.user
    context = {
        "form": form,
        "refused": refused,
        "has_password": user.has_usable_password(),
        "may_set": bool(request.session.get(MAY_SET_PASSWORD_KEY)),
        "elsewhere": count_other_logins(user, request.session.session_key),
    }
    return render_settings(request, "accounts/password.html", "settings-password", context, status)


def _set_password(request: UserHttpRequest, form: Any) -> None:
    user = form.save()
    _password_change_limit.forgive(str(user.pk))
    request.session.pop(MAY_SET_PASSWORD_KEY, None)
    update_session_auth_hash(request, user)
    end_other_logins(user, request.session.session_key)
    LoginLink.forget(user)


@require_POST
def log_out_elsewhere(request: UserHttpRequest) -> HttpResponse:
    """End all logins of the user except this one."""
    count = end_other_logins(request.user, request.session.session_key)
    messages.success(request, plural(count, "1 other login ended.", "{} other logins ended."))
    return redirect("settings-password")


@never_cache
def manage_tokens(request: UserHttpRequest) -> HttpResponse:
    """List API tokens. A POST creates one; only its response shows the key, which is not stored."""
    if request.method != "POST":
        return _render_tokens(request, TokenForm())
    form = TokenForm(request.POST)
    if form.is_valid():
        try:
            created, key = credentials.create_token(request.user, **form.cleaned_data)
        except Conflict as error:
            form.add_error(None, error.message)
        else:
            return _render_tokens(request, TokenForm(), 201, key=key, made=created)
    return _render_tokens(request, form, 422)


def _render_tokens(
    request: UserHttpRequest, form: TokenForm, status: int = 200, *, key: str = "", made: ApiToken | None = None
) -> HttpResponse:
    context = {"form": form, "tokens": credentials.list_tokens(request.user), "key": key, "made": made}
    return render_settings(request, "accounts/tokens.html", "settings-tokens", context, status)


@require_POST
def revoke_own_token(request: UserHttpRequest, token_id: uuid.UUID) -> HttpResponse:
    """Revoke a token; 404 for another user's token."""
    try:
        credentials.revoke_token(request.user, token_id)
    except NotFound:
        raise Http404 from None
    messages.success(request, "Token revoked. Programs that use it are refused from now on.")
    return redirect("settings-tokens")
