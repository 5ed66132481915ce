"""Admin of what sessions record, from intents to receipts, and of inbox items, presence and team policies.

Only team policies can be edited.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest

from executors_app.staff_admin import ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.models import (
    AgentSettings,
    Attachment,
    AttentionItem,
    AttentionMark,
    ContinuityReceipt,
    Intent,
    Message,
    MessagePart,
    PermissionRequest,
    PreparedHistory,
    Presence,
    Prompt,
    RenderedText,
    ReportedAgent,
    ResumeToken,
    SessionEvent,
    TeamPolicy,
    Turn,
)
from sessions_app.services.attention_wording import word_items

_SETTLED_FIELDS: Final = ("consumed_at", "revoked_at", "expired_at")
EXCERPT_LENGTH: Final = 100
"""Characters of a text that lists show."""


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT_LENGTH else f"{text[:EXCERPT_LENGTH]}…"


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
        return _excerpt(prompt.text)


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


@admin.register(PreparedHistory)
class PreparedHistoryAdmin(SessionRowAdmin):
    """Which histories are ready for a new agent, without their texts."""

    list_display = ("built_at", "session", "task")
    date_hierarchy = "built_at"
    ordering = ("-built_at",)
    exclude = ("text", "version")

    def get_queryset(self, request: HttpRequest) -> QuerySet[PreparedHistory]:
        """Return the rows without reading the texts."""
        rows: QuerySet[PreparedHistory] = super().get_queryset(request)
        return rows.defer("text")


@admin.register(Turn)
class TurnAdmin(SessionRowAdmin):
    """Turns and waits."""

    list_display = ("started_at", "session", "task", "origin", "state", "wait_kind", "waited", "reason", "ended_at")
    list_filter = ("state", "origin", "wait_kind", "waited", "reason")
    search_fields = ("=id", "message_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "started_at"
    ordering = ("-started_at",)


@admin.register(SessionEvent)
class SessionEventAdmin(SessionRowAdmin):
    """The logs of all sessions."""

    list_display = ("at", "session", "task", "seq", "name")
    list_filter = ("name",)
    search_fields = ("name", *SessionRowAdmin.search_fields)
    date_hierarchy = "at"
    ordering = ("-id",)


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
        return _excerpt(first[0].text) if first else ""

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
        return _excerpt(part.text)


@admin.register(PermissionRequest)
class PermissionRequestAdmin(SessionRowAdmin):
    """Permissions that agents requested, their questions, and the answers; not what is on its way to an agent."""

    list_display = ("requested_at", "id", "session", "task", "kind", "state", "option_id", "settled_at")
    list_filter = ("kind", "state")
    exclude = ("sealed_answer",)
    search_fields = ("id", *SessionRowAdmin.search_fields)
    date_hierarchy = "requested_at"
    ordering = ("-requested_at",)


@admin.register(ResumeToken)
class ResumeTokenAdmin(SessionRowAdmin):
    """Keys of waits and what happened to them, without their secrets."""

    list_display = ("created_at", "id", "session", "task", "wait_kind", "expires_at", *_SETTLED_FIELDS, "reason")
    list_filter = ("wait_kind", *((name, admin.EmptyFieldListFilter) for name in _SETTLED_FIELDS), "reason")
    search_fields = ("=id", "=run__id", "wait_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    hidden = ("secret_hash",)


@admin.register(ContinuityReceipt)
class ContinuityReceiptAdmin(SessionRowAdmin):
    """Continuity receipts: how resumes ended, with the evidence."""

    list_display = ("created_at", "session", "task", "kind", "verified", "strategy", "reason")
    list_filter = ("kind", "verified", "strategy", "reason")
    search_fields = ("=id", "reason", "launch_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(AgentSettings)
class AgentSettingsAdmin(SessionRowAdmin):
    """What agents report about themselves, and the settings that users chose for them."""

    list_display = ("updated_at", "session", "task", "title", "settings_at", "commands_at")
    list_filter = (("settings_at", admin.EmptyFieldListFilter),)
    search_fields = ("title", *SessionRowAdmin.search_fields)
    date_hierarchy = "updated_at"
    ordering = ("-updated_at",)


@admin.register(ReportedAgent)
class ReportedAgentAdmin(ReadOnlyModelAdmin):
    """The name and version that the agents of a team last reported on each executor."""

    list_display = ("seen_at", "team", "executor", "agent_type", "name", "version")
    list_select_related = ("team", "executor")
    list_filter = ("agent_type",)
    search_fields = ("agent_type", "name", "team__name", "executor__name")
    date_hierarchy = "seen_at"
    ordering = ("-seen_at",)


@admin.register(AttentionItem)
class AttentionItemAdmin(ReadOnlyModelAdmin):
    """Inbox items, which are resolved automatically and never edited."""

    list_display = ("created_at", "kind", "session", "task", "workflow", "what", "resolved_at", "resolution")
    list_select_related = ("session__task", "task", "workflow")
    list_filter = ("kind", ("resolved_at", admin.EmptyFieldListFilter), "resolution")
    search_fields = ("=id", "key", "what", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    hidden = ("quoted", "worded", "worded_for")

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return the list, whose items have their quotations."""
        shown = super().get_changelist_instance(request)
        rows = list(shown.result_list)
        word_items(rows)
        shown.result_list = rows
        return shown

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return an item with its quotations."""
        found = super().get_object(request, object_id, from_field)
        if found is not None and request.method == "GET":  # others run in a transaction, and show nothing
            word_items([found])
        return found


@admin.register(AttentionMark)
class AttentionMarkAdmin(ReadOnlyModelAdmin):
    """Which users have seen or dismissed an item."""

    list_display = ("id", "item", "user", "acknowledged_at", "dismissed_at")
    list_select_related = ("item", "user")
    search_fields = ("item__key", "user__username")
    date_hierarchy = "acknowledged_at"
    ordering = ("-id",)


@admin.register(Presence)
class PresenceAdmin(ReadOnlyModelAdmin):
    """Which users have a session's page open; expired rows are past visits."""

    list_display = ("expires_at", "user", "session")
    list_select_related = ("user", "session")
    search_fields = ("=session__id", "user__username")
    date_hierarchy = "expires_at"
    ordering = ("-expires_at",)


@admin.register(TeamPolicy)
class TeamPolicyAdmin(StaffModelAdmin):
    """Restart policies of teams."""

    list_display = ("team", "policy", "continue_prompts", "updated_by", "updated_at")
    list_filter = ("policy", "continue_prompts")
    list_select_related = ("team", "updated_by")
    search_fields = ("team__name",)
    date_hierarchy = "updated_at"
    fields = ("team", "policy", "continue_prompts")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Keep the team of an existing policy."""
        return ("team",) if obj else ()

    def save_model(self, request: HttpRequest, obj: TeamPolicy, form: Any, change: bool) -> None:
        """Record who changed the policy."""
        obj.updated_by_id = request.user.pk
        super().save_model(request, obj, form, change)
