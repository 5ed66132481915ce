"""Admin pages of repositories and executors."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import HttpRequest
from django.urls import reverse

from executors_app import plugins
from executors_app.models import Executor
from executors_app.orm import JSONFormField
from executors_app.staff_admin import Form, RuntimeListFilter, StaffModelAdmin, runtime_column
from executors_app.wire.runtime_names import runtime_choice
from sessions_app.catalogue.executor_forms import RUNTIME_HELP, SETTINGS, Setting, setting_field
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
    list_filter = ("team", ("removed_at", admin.EmptyFieldListFilter))
    list_select_related = ("team",)
    search_fields = ("id", "name", "path", "team__name")
    date_hierarchy = "created_at"
    fields = ("name", "team", "path", "default_branch")
    shown_later = ("default_base", "executor_labels", "is_default", "removed_at", "created_at")

    def view_on_site(self, repository: Repository) -> str:
        """Return the repository's page in the settings."""
        return reverse("settings-repository", args=[repository.pk])

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


def _field_name(runtime: str, setting: Setting) -> str:
    return f"{runtime}-{setting.name}"


def _runtimes_of(executor: Executor | None) -> list[str]:
    """Return the runtimes whose settings a form offers: that of an existing executor, or all."""
    if executor is not None:
        return [executor.runtime]
    known = [*SETTINGS, *sorted(set(plugins.runtimes()) - set(SETTINGS))]
    return [name for name in known if name in plugins.runtimes()]


class ExecutorAdminForm(Form):
    """An executor, with a field for each setting of its runtime; that of a new one is chosen here."""

    is_new: ClassVar = True

    runtime = forms.ChoiceField(
        choices=lambda: [(name, runtime_choice(name)) for name in _runtimes_of(None)],
        help_text="Where its agents run. This cannot be changed later.",
    )

    class Meta:
        model = Executor
        fields = ("name", "runtime", "max_live", "pool", "labels", "host")
        labels: ClassVar = {"max_live": "Agents at once"}
        help_texts: ClassVar = {
            "name": "As people see it when they start a session.",
            "max_live": "Empty: on this machine as many as its memory allows, elsewhere no limit. 0: none.",
            "pool": "Executors of one runtime with the same pool share its sessions. Empty: none.",
            "labels": "What it offers to sessions of its pool: names, separated by commas.",
            "host": "The only host whose supervisors start sessions there. Empty: any that has the repository.",
        }

    @classmethod
    def for_executor(cls, executor: Executor | None) -> type[ExecutorAdminForm]:
        """Return the form with the fields for an executor; None: a new one."""
        fields: dict[str, Any] = {}
        for runtime in _runtimes_of(executor):
            for setting in SETTINGS.get(runtime, ()):
                fields[_field_name(runtime, setting)] = _optional_field(setting)
            if runtime not in SETTINGS:
                fields[f"{runtime}-config"] = JSONFormField(
                    required=False, label="Settings", help_text="A JSON object, as its documentation describes it."
                )
        if executor is not None:
            fields |= {"runtime": None, "is_new": False}
        return type("ExecutorAdminFormOfRuntime", (cls,), fields)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not self.is_new:
            self._show_settings(self.instance)

    def _show_settings(self, executor: Executor) -> None:
        self.initial[f"{executor.runtime}-config"] = executor.config
        for setting in SETTINGS.get(executor.runtime, ()):
            self.initial[_field_name(executor.runtime, setting)] = executor.config.get(setting.name)

    def clean(self) -> dict[str, Any]:
        """Copy the settings of the runtime into the row, and refuse those of another one."""
        values: dict[str, Any] = super().clean() or {}
        runtime = values.get("runtime") or self.instance.runtime
        if runtime:
            self._refuse_foreign_settings(runtime)
            self.instance.config = self._config(runtime, values)
        return values

    def _refuse_foreign_settings(self, runtime: str) -> None:
        for name in self.changed_data:
            other, dash, _setting = name.partition("-")
            if dash and other != runtime:
                self.add_error(name, "Only executors of this kind have this setting: clear it, or choose this runtime.")

    def _config(self, runtime: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the settings as the model has them; those without a field stay."""
        if runtime not in SETTINGS:
            config = values.get(f"{runtime}-config") or {}
            if not isinstance(config, dict):
                self.add_error(f"{runtime}-config", "Expected a JSON object.")
                return {}
            return config
        settings = SETTINGS[runtime]
        named = {setting.name for setting in settings}
        config = {name: value for name, value in self.instance.config.items() if name not in named}
        for setting in settings:
            name = _field_name(runtime, setting)
            value = values.get(name)
            if value not in (None, "", {}):
                config[setting.name] = value
            elif setting.required and name not in self.errors:
                self.add_error(name, "This field is required.")
        return config

    def add_error(self, field: str | None, error: Any) -> None:
        """Show what the runtime says about its settings as an error of the form, if no field has one of its own."""
        found = dict(getattr(error, "error_dict", {}))
        if "config" not in found:
            super().add_error(field, error)
            return
        of_settings = found.pop("config")
        if not self.errors:
            found[NON_FIELD_ERRORS] = [*found.get(NON_FIELD_ERRORS, []), *of_settings]
        if found:
            super().add_error(None, ValidationError(found))


def _optional_field(setting: Setting) -> forms.Field:
    """Return the field of a setting, which is required only if its runtime is chosen."""
    field = setting_field(setting)
    field.required = False
    return field


@admin.register(Executor)
class ExecutorAdmin(StaffModelAdmin):
    """The places where agents run; the runtime of one is fixed once it is added."""

    form = ExecutorAdminForm
    list_display = (
        "name",
        runtime_column,
        "max_live",
        "pool",
        "host",
        "isolated",
        "is_default",
        "disabled_at",
        "created_at",
    )
    list_filter = (("runtime", RuntimeListFilter), ("disabled_at", admin.EmptyFieldListFilter))
    list_select_related = ("host",)
    search_fields = ("name", "runtime", "pool", "labels")
    date_hierarchy = "created_at"
    shown_later = ("isolated", "is_default", "disabled_at", "created_at")

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        """Return the form with the settings of its runtime, or of all for a new executor."""
        return super().get_form(request, obj, change, **{**options, "form": ExecutorAdminForm.for_executor(obj)})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep the runtime of an existing executor: its sessions run there."""
        if obj:
            return ("runtime", *self.shown_later)
        return ()

    def get_fieldsets(self, request: HttpRequest, obj: Executor | None = None) -> Any:
        """Return the general fields, and a group for the settings of each runtime."""
        groups: list[Any] = [(None, {"fields": ("name", "runtime", "max_live", "pool", "labels", "host")})]
        groups += [_settings_group(runtime, is_folded=obj is None) for runtime in _runtimes_of(obj)]
        if obj:
            groups.append(("Record", {"fields": self.shown_later}))
        return groups

    def written(self, form: Form) -> set[str]:
        """Return the changed fields; the settings are one of them."""
        written = super().written(form)
        if any("-" in name for name in form.changed_data):
            written.add("config")
        return written

    def view_on_site(self, executor: Executor) -> str:
        """Return the executor's page in the settings, where it is tested, disabled or made the default."""
        return reverse("settings-executor", args=[executor.pk])

    @admin.display(boolean=True, description="isolated")
    def isolated(self, executor: Executor) -> bool | None:
        """Whether agents there are kept away from the control plane; otherwise only trusted agents belong there."""
        try:
            return not executor.trusted_agents_only
        except plugins.UnknownPlugin:
            return None


def _settings_group(runtime: str, *, is_folded: bool) -> Any:
    """Return the group of fields with the settings of a runtime."""
    fields = [_field_name(runtime, setting) for setting in SETTINGS.get(runtime, ())]
    if runtime not in SETTINGS:
        fields = [f"{runtime}-config"]
    group: dict[str, Any] = {"fields": fields, "description": RUNTIME_HELP.get(runtime, "")}
    if is_folded and fields:
        group["classes"] = ("collapse",)
    return f"Settings: {runtime_choice(runtime)}", group
