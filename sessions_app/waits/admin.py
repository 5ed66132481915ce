"""Admin page of the keys of waits."""

from __future__ import annotations

from typing import Final

from django.contrib import admin

from sessions_app.kernel.admin import SessionRowAdmin
from sessions_app.models import (
    WaitKey,
)

_SETTLED_FIELDS: Final = ("consumed_at", "revoked_at", "expired_at")


@admin.register(WaitKey)
class WaitKeyAdmin(SessionRowAdmin):
    """Keys of waits and what happened to them, without their secrets."""

    list_display = ("created_at", "id", "session", "task", "wait_kind", "expires_at", *_SETTLED_FIELDS, "reason")
    list_filter = ("wait_kind", *((name, admin.EmptyFieldListFilter) for name in _SETTLED_FIELDS), "reason")
    search_fields = ("=id", "=run__id", "wait_id", *SessionRowAdmin.search_fields)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    hidden = ("secret_hash",)
