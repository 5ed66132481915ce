"""Admin pages of messages."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin
from sessions_app.kernel.admin import SessionRowAdmin, excerpt
from sessions_app.models import (
    Message,
    MessagePart,
)


@admin.register(Message)
class MessageAdmin(SessionRowAdmin):
    """Messages of the conversations."""

    list_display = ("created_at", "session", "task", "seq", "role", "complete", "beginning")
    list_filter = ("role", "complete")
    search_fields = ("=id", "key", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at", "-seq")
    readonly_fields = ("text",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Return the messages with the first part of their text."""
        rows: QuerySet[Message] = super().get_queryset(request)
        first = Prefetch("parts", MessagePart.objects.filter(number=0), to_attr="first_parts")
        return rows.prefetch_related(first)

    @admin.display(description="text")
    def beginning(self, message: Message) -> str:
        """Return the beginning of the text."""
        first: list[MessagePart] = getattr(message, "first_parts", [])
        if first:
            return excerpt(first[0].text)
        return ""

    @admin.display(description="text")
    def text(self, message: Message) -> str:
        """Return the full text."""
        return "".join(message.parts.values_list("text", flat=True))


@admin.register(MessagePart)
class MessagePartAdmin(ReadOnlyModelAdmin):
    """The parts in which long texts are stored."""

    list_display = ("id", "message", "number", "beginning")
    list_select_related = ("message",)
    search_fields = ("=message__id", "=message__session__id", "text")
    ordering = ("-id",)

    @admin.display(description="text")
    def beginning(self, part: MessagePart) -> str:
        """Return the beginning of the text."""
        return excerpt(part.text)
