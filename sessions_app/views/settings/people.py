"""Everybody who has an account, for staff: new accounts, and ways in for who has none at hand."""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from sessions_app.models import LoginLink
from sessions_app.services import teams
from sessions_app.services.errors import SessionsError
from sessions_app.views.settings.forms import PersonForm
from sessions_app.views.settings.links import address_of_link
from sessions_app.views.settings.sections import show

SHOWN: Final = 100


def _for_staff(view: Any) -> Any:
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not getattr(request.user, "is_staff", False):
            raise PermissionDenied
        answer: HttpResponse = view(request, *args, **kwargs)
        return answer

    return guarded


@_for_staff
@never_cache
def people(request: HttpRequest) -> HttpResponse:
    """List and search; a POST makes an account and shows the link for its owner, in its answer alone."""
    form = PersonForm(request.POST if request.method == "POST" else None)
    if request.method != "POST":
        return _page(request, form)
    if form.is_valid():
        try:
            user, secret = teams.invite(None, role="", by=request.user, **form.cleaned_data)
            return _page(request, PersonForm(), 201, given_to=user, link=address_of_link(request, secret), is_new=True)
        except SessionsError as error:
            form.add_error(None, error.message)
    return _page(request, form, 422)


@_for_staff
@never_cache
@require_POST
def link(request: HttpRequest, user_id: int) -> HttpResponse:
    """A way into somebody's account: to log in, or to set a new password."""
    user = get_object_or_404(get_user_model(), pk=user_id, is_active=True)
    if not teams.may_give_link(request.user, user):
        raise PermissionDenied
    purpose = LoginLink.Purpose.PASSWORD if request.POST.get("purpose") == "password" else LoginLink.Purpose.LOGIN
    secret = teams.link_for(user, purpose, request.user)
    more = {"given_to": user, "link": address_of_link(request, secret), "purpose": purpose.value}
    return _page(request, PersonForm(), 201, **more)


@_for_staff
@never_cache
@require_POST
def activity(request: HttpRequest, user_id: int) -> HttpResponse:
    """Deactivate somebody's account, or activate it again (``active``: 1)."""
    user = get_object_or_404(get_user_model(), pk=user_id)
    if not teams.may_give_link(request.user, user):
        raise PermissionDenied
    active = request.POST.get("active") == "1"
    try:
        teams.set_active(user, request.user, active=active)
    except SessionsError as error:
        messages.error(request, error.message)
    else:
        messages.success(request, f"{user.get_username()} is {'active again' if active else 'inactive now'}.")
    return redirect("settings-people")


def _page(request: HttpRequest, form: PersonForm, status: int = 200, **more: Any) -> HttpResponse:
    words = request.GET.get("q", "").strip()[:150]
    rows = get_user_model().objects.order_by("-is_active", "username").prefetch_related("groups")
    if words:
        rows = rows.filter(Q(username__icontains=words) | Q(first_name__icontains=words) | Q(email__icontains=words))
    shown = [(user, teams.may_give_link(request.user, user)) for user in rows[:SHOWN]]
    context = {"people": shown, "total": rows.count(), "words": words, "form": form, **more}
    return show(request, "settings/people.html", "settings-people", context, status)
