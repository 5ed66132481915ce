"""The admin site, with the product's name and one login page for everyone."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from kandev.admin_sections import SECTION_OF, SECTIONS, Section


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

    def get_urls(self) -> list[URLPattern | URLResolver]:
        """Return the pages of Django's admin, and one for each section."""
        section = path("section/<slug:slug>/", self.admin_view(self.section_index), name="section")
        return [section, *super().get_urls()]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the models by section; those of one Django app as Django lists them."""
        apps = super().get_app_list(request, app_label)
        if app_label:
            return apps
        models = {model["model"]._meta.label_lower: model for app in apps for model in app["models"]}
        sections = [_list_section(section, models) for section in SECTIONS]
        return [section for section in sections if section["models"]]

    def section_index(self, request: HttpRequest, slug: str) -> HttpResponse:
        """Show the models of one section. Raises Http404."""
        found = [section for section in self.get_app_list(request) if section["app_label"] == slug]
        if not found:
            raise Http404(slug)
        context = {**self.each_context(request), "title": found[0]["name"], "subtitle": None, "app_list": found}
        return TemplateResponse(request, "admin/app_index.html", context)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Add the section of the page's model, for its breadcrumbs."""
        return {**super().each_context(request), "section": _section_of_page(request)}


def _list_section(section: Section, models: dict[str, Any]) -> dict[str, Any]:
    """Return a section as the templates of Django's admin expect an app."""
    listed = []
    for label in section.models:
        if label in models:
            name = section.names.get(label, models[label]["name"])
            listed.append({**models[label], "name": name})
    return {
        "name": section.name,
        "app_label": section.slug,
        "app_url": reverse("admin:section", args=[section.slug]),
        "has_module_perms": True,
        "models": listed,
    }


def _section_of_page(request: HttpRequest) -> Section | None:
    """Return the section of the model whose page is shown; None for other pages."""
    match = request.resolver_match
    if match is None or match.url_name is None:
        return None
    model, _, _page = match.url_name.rpartition("_")
    for label, section in SECTION_OF.items():
        if label.replace(".", "_") == model:
            return section
    return None
