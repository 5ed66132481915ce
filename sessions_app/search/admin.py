"""Admin pages of the index of the search."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import SearchCursor, SearchDocument


@admin.register(SearchCursor)
class SearchCursorAdmin(SessionRowAdmin):
    """How far each session is indexed."""

    list_display = ("session", "seq", "indexed_at", "left_out", "task")
    date_hierarchy = "indexed_at"
    ordering = ("-indexed_at",)


@admin.register(SearchDocument)
class SearchDocumentAdmin(SessionRowAdmin):
    """What is indexed, without the texts."""

    list_display = ("id", "kind", "session", "task", "at")
    list_filter = ("kind",)
    date_hierarchy = "at"
    list_select_related = ("session__task", "task")
    ordering = ("-id",)
    exclude = ("text",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SearchDocument]:
        """Return the rows without reading the texts."""
        rows: QuerySet[SearchDocument] = super().get_queryset(request)
        return rows.defer("text")
