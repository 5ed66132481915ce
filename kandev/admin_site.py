"""The admin site, with the product's name and one login page for everyone."""

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
    """Django's admin for staff, behind the product's login page, which limits wrong passwords."""

    site_header = "Kandev"
    site_title = "Kandev"
    index_title = "Administration"

    @method_decorator(login_not_required)
    @method_decorator(never_cache)
    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect anonymous users to the login page and staff to the index. Raises PermissionDenied for others."""
        if self.has_permission(request):
            return redirect("admin:index")
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME, "/admin/"), settings.LOGIN_URL)

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the user settings, which limit wrong old passwords and end other logins."""
        return redirect("settings-password")
