"""The admin's site: its names, and one door for everybody."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache


class KandevAdminSite(AdminSite):
    """Django's admin. Staff alone comes in, through the one login page, which counts wrong passwords."""

    site_header = "Kandev"
    site_title = "Kandev"
    index_title = "Administration"

    @method_decorator(login_not_required)
    @method_decorator(never_cache)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Send nobody to the login page, staff to the index; refuse everybody else."""
        if self.has_permission(request):
            return redirect("admin:index")
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME, "/admin/"), settings.LOGIN_URL)

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """In the settings, where wrong old passwords are counted and the other logins end."""
        return redirect("settings-password")
