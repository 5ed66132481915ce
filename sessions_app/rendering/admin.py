"""Admin page of the stored texts."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    RenderedText,
)


@admin.register(RenderedText)
class RenderedTextAdmin(SessionRowAdmin):
    """Which texts have been rendered, without the results."""

    list_display = ("key", "size", "session", "task")
    search_fields = ("=key", *SessionRowAdmin.search_fields)
    ordering = ("-id",)
    exclude = ("result",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[RenderedText]:
        """Return the rows without reading the results."""
        rows: QuerySet[RenderedText] = super().get_queryset(request)
        return rows.defer("result")
