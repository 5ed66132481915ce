"""Admin page of repositories."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from executors_app.staff_admin import Form, StaffModelAdmin
from sessions_app.catalogue.services.repositories import InspectedRepository, inspect_repository
from sessions_app.kernel.services.errors import Invalid
from sessions_app.models import Repository


class RepositoryForm(Form):
    """A repository, which has to be below ``KANDEV_REPOSITORY_ROOTS``."""

    inspected: ClassVar[InspectedRepository | Invalid | None] = None
    """What was found at the path of a new repository, before the transaction of the request."""

    class Meta:
        model = Repository
        fields = ("name", "team", "path", "default_branch")

    def clean_path(self) -> str:
        """Return the resolved path of a git repository. Raises ValidationError."""
        if self.inspected is None:
            raise forms.ValidationError("Enter the path again.")
        if isinstance(self.inspected, Invalid):
            raise forms.ValidationError(self.inspected.message)
        return self.inspected.path


@admin.register(Repository)
class RepositoryAdmin(StaffModelAdmin):
    """Repositories that staff opened to teams; path and team are fixed once added."""

    form = RepositoryForm
    list_display = ("name", "team", "path", "default_branch", "is_default", "removed_at", "created_at")
    list_filter = ("team",)
    list_select_related = ("team",)
    search_fields = ("id", "name", "path", "team__name")
    date_hierarchy = "created_at"
    fields = ("name", "team", "path", "default_branch")
    shown_later = ("default_base", "is_default", "removed_at", "created_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep team and path of an existing repository, because tasks work there."""
        if obj:
            return ("team", "path", *self.shown_later)
        return ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Show what the settings page has changed of an existing repository, and its creation time."""
        if obj:
            return [*self.fields, *self.shown_later]
        return [*self.fields]

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **options: Any) -> Any:
        """Look at a new repository before the transaction in which the admin saves it: git may take long."""
        if request.method == "POST" and object_id is None and self.has_add_permission(request):
            vars(request)["inspected"] = _inspect(request.POST.get("path", "").strip())
        return super().changeform_view(request, object_id, *args, **options)

    def get_form(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        """Return a form that knows what was found at the path."""
        form: Any = super().get_form(request, *args, **options)
        form.inspected = vars(request).get("inspected")
        return form

    def save_model(self, request: HttpRequest, obj: Repository, form: Any, change: bool) -> None:
        """Save the repository; its default branch defaults to the current one."""
        if not obj.default_branch and isinstance(form.inspected, InspectedRepository):
            obj.default_branch = form.inspected.branch
        super().save_model(request, obj, form, change)


def _inspect(path: str) -> InspectedRepository | Invalid:
    """Return what was found at a path, or why it cannot be used."""
    try:
        return inspect_repository(path)
    except Invalid as error:
        return error
