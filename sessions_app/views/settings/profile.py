"""Who somebody is, and how they like to see the pages."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from sessions_app.models import Preferences
from sessions_app.views.look import remember_look, theme_of
from sessions_app.views.settings.forms import ProfileForm
from sessions_app.views.settings.sections import show


def settings(request: HttpRequest) -> HttpResponse:
    """The first page of the settings."""
    return redirect("settings-profile")


@never_cache
def profile(request: HttpRequest) -> HttpResponse:
    """Show name, address, zone and theme; a POST writes them."""
    user: Any = request.user  # nobody else is let in
    chosen = Preferences.objects.filter(user_id=user.pk).first() or Preferences(
        user_id=user.pk, theme=theme_of(request)
    )
    form = ProfileForm(user, chosen, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, "Your profile is saved.")
        response = redirect("settings-profile")
        remember_look(response, user)
        return response
    status = 422 if form.errors else 200
    return show(request, "settings/profile.html", "settings-profile", {"form": form}, status)
