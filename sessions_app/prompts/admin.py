"""Admin pages of prompts and their files."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from sessions_app.kernel.admin import SessionRowAdmin, excerpt
from sessions_app.models import (
    Attachment,
    Prompt,
)


@admin.register(Prompt)
class PromptAdmin(SessionRowAdmin):
    """Prompts and their delivery state."""

    list_display = ("created_at", "message_id", "kind", "state", "session", "task", "by", "beginning", "updated_at")
    list_filter = ("state", "kind")
    list_select_related = ("session__task", "by")
    search_fields = ("message_id", "text", *SessionRowAdmin.search_fields, "by__username")
    date_hierarchy = "created_at"
    ordering = ("-id",)

    @admin.display(description="text")
    def beginning(self, prompt: Prompt) -> str:
        """Return the beginning of the text."""
        return excerpt(prompt.text)


@admin.register(Attachment)
class AttachmentAdmin(SessionRowAdmin):
    """The files of prompts, without their contents."""

    list_display = ("created_at", "media_type", "sha256", "session", "task")
    list_filter = ("media_type",)
    search_fields = ("=sha256", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-id",)
    exclude = ("content",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attachment]:
        """Return the rows without reading the contents."""
        rows: QuerySet[Attachment] = super().get_queryset(request)
        return rows.defer("content")
