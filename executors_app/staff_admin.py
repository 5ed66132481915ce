"""Base classes of every admin page: staff may do what a page offers, and secrets are never shown.

As in the API, ``User.is_staff`` decides. Django's finer permissions guard only users and teams, because whoever can
change those can make others staff.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from executors_app.encryption import SecretUnreadable
from executors_app.wire.runtime_names import RUNTIME_NAMES, runtime_name

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    Form = ModelForm[Any]
else:
    ModelAdmin = admin.ModelAdmin
    Form = ModelForm


class TextListFilter(admin.AllValuesFieldListFilter):
    """A filter by the values of a text field. Django's own shows an empty one as a link without words."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices; the empty one is called none."""
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or "none"}


def _is_text(field: Any) -> bool:
    return isinstance(field, models.CharField) and not field.choices


admin.FieldListFilter.register(_is_text, TextListFilter, take_priority=True)


class RuntimeListFilter(TextListFilter):
    """A filter by runtime that shows each in words."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices, each with the words of its runtime."""
        for choice in super().choices(changelist):
            shown = str(choice["display"])
            yield {**choice, "display": RUNTIME_NAMES.get(shown, shown)}


def words_filter(words: Mapping[str, str]) -> type[admin.FieldListFilter]:
    """Return a filter by a field with choices that shows each value as our pages do."""

    class WordsListFilter(admin.ChoicesFieldListFilter):
        def choices(self, changelist: Any) -> Iterator[Any]:
            """Yield the choices, each with its words."""
            for choice in super().choices(changelist):
                shown = str(choice["display"])
                yield {**choice, "display": words.get(shown, shown)}

    return WordsListFilter


@admin.display(description="runtime", ordering="runtime")
def runtime_column(row: Any) -> str:
    """Return where agents of a row's runtime run."""
    return runtime_name(row.runtime)


UNREADABLE_TEXT = "set, but cannot be decrypted with the current keys"


class StaffModelAdmin(ModelAdmin):
    """Allows staff everything that the page offers."""

    list_per_page = 50
    show_full_result_count = False

    def _is_staff(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the admin site admits the user."""
        return self.admin_site.has_permission(request)

    has_module_permission = has_view_permission = has_change_permission = has_delete_permission = _is_staff

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the admin site admits the user."""
        return self._is_staff(request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find an id with or without dashes, whichever way the database stores it."""
        words = " ".join(map(_with_dashes, search_term.split(" ")))
        return super().get_search_results(request, queryset, words)

    def save_model(self, request: HttpRequest, obj: Any, form: Form, change: bool) -> None:
        """Write only the fields that the form changed: other processes write the same rows."""
        if change:
            touched = [field.name for field in self.opts.concrete_fields if getattr(field, "auto_now", False)]
            obj.save(update_fields=[*self.written(form), *touched])
        else:
            obj.save()

    def written(self, form: Form) -> set[str]:
        """Return the names of the model fields that the form changed."""
        return {field.name for field in self.opts.concrete_fields} & set(form.changed_data)


def _with_dashes(word: str) -> str:
    try:
        return str(uuid.UUID(word))
    except ValueError:
        return word


class ReadOnlyModelAdmin(StaffModelAdmin):
    """Records of what happened: no row can be added, changed or deleted here."""

    actions: Sequence[str] | None = None
    hidden: Sequence[str] = ()
    """Fields that are never shown."""

    def _is_never_allowed(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = _is_never_allowed

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: rows cannot be added here."""
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Return all fields except the hidden ones, then the class's own."""
        own = [field.name for field in self.opts.concrete_fields if field.name not in self.hidden]
        return [*own, *self.readonly_fields]


def describe_secret(instance: models.Model, name: str) -> str:
    """Return whether a random secret is set, and its fingerprint (as in receipts)."""
    try:
        secret = getattr(instance, name)
    except SecretUnreadable:
        return UNREADABLE_TEXT
    if secret:
        return f"set, fingerprint {hashlib.sha256(secret.encode()).hexdigest()[:16]}"
    return "not set"
