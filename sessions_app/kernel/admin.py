"""Admin pages of intents and the log, and what the pages of session rows share."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.models import (
    Intent,
    SessionEvent,
)

EXCERPT_LENGTH: Final = 100
"""Characters of a text that lists show."""


def excerpt(text: str) -> str:
    """Return the beginning of a text, as lists show it."""
    if len(text) <= EXCERPT_LENGTH:
        return text
    return f"{text[:EXCERPT_LENGTH]}…"


class SessionRowAdmin(ReadOnlyModelAdmin):
    """Base class of pages for rows that belong to a session."""

    list_select_related: ClassVar[tuple[str, ...]] = ("session__task",)
    search_fields: ClassVar[tuple[str, ...]] = ("=session__id", "session__task__title")

    @admin.display(ordering="session__task__title")
    def task(self, row: Any) -> str:
        """Return the task of the session."""
        return str(row.session.task)


@admin.register(Intent)
class IntentAdmin(SessionRowAdmin):
    """Requests to sessions, and whether they are done."""

    list_display = ("created_at", "kind", "session", "task", "by", "claimed_generation", "done_at", "outcome")
    list_filter = ("kind", ("done_at", admin.EmptyFieldListFilter), "outcome")
    list_select_related = ("session__task", "by")
    search_fields = ("=id", *SessionRowAdmin.search_fields, "by__username")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(SessionEvent)
class SessionEventAdmin(SessionRowAdmin):
    """The logs of all sessions."""

    list_display = ("at", "session", "task", "seq", "name")
    list_filter = ("name",)
    search_fields = ("name", *SessionRowAdmin.search_fields)
    date_hierarchy = "at"
    ordering = ("-id",)
