"""Admin pages of review comments and viewed versions."""

from __future__ import annotations

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import ReviewComment, ViewedVersion


@admin.register(ReviewComment)
class ReviewCommentAdmin(SessionRowAdmin):
    """Comments on the changes of sessions, and the prompts that have carried them."""

    list_display = ("created_at", "session", "task", "author_name", "path", "first_line", "sent_with")
    search_fields = ("=id", "path", "author_name", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)


@admin.register(ViewedVersion)
class ViewedVersionAdmin(SessionRowAdmin):
    """Which versions of changed files users have viewed."""

    list_display = ("viewed_at", "session", "task", "version")
    date_hierarchy = "viewed_at"
    ordering = ("-viewed_at",)
