"""Admin pages of intents and the log, and what the pages of session rows share."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from executors_app.staff_admin import ReadOnlyModelAdmin, StaffModelAdmin
from sessions_app.accounts.team_scope import teams_of
from sessions_app.models import (
    Intent,
    SessionEvent,
    TaskSession,
)

EXCERPT_LENGTH: Final = 100
"""Characters of a text that lists show."""


def excerpt(text: str) -> str:
    """Return the beginning of a text, as lists show it."""
    if len(text) <= EXCERPT_LENGTH:
        return text
    return f"{text[:EXCERPT_LENGTH]}…"


def session_page(session: TaskSession) -> str:
    """Return the address of a session's page."""
    return reverse("session", args=[session.task_id, session.id])


class TeamPageMixin(StaffModelAdmin):
    """Links rows to their pages, for those who are in the team: to others, these pages do not exist."""

    page_team: ClassVar[str] = "team"
    """The lookup from the row to the team whose members can open its page."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, each with whether the user is in the team of its page."""
        condition = Q(**{f"{self.page_team}__in": teams_of(cast(User, request.user))})
        rows: QuerySet[Any] = super().get_queryset(request)
        marked: QuerySet[Any] = rows.annotate(has_page_for_user=ExpressionWrapper(condition, BooleanField()))
        return marked

    def page_of(self, row: Any) -> str:
        """Return the address of a row's page."""
        raise NotImplementedError

    def view_on_site(self, row: Any) -> str | None:
        """Return the address of the row's page; None for those who cannot open it."""
        if getattr(row, "has_page_for_user", False):
            return self.page_of(row)
        return None

    @admin.display(description="page")
    def page_link(self, row: Any) -> str:
        """Return a link to the row's page."""
        address = self.view_on_site(row)
        if address is None:
            return "–"
        return format_html('<a href="{}">Open</a>', address)


class SessionRowAdmin(TeamPageMixin, ReadOnlyModelAdmin):
    """Base class of pages for rows that belong to a session."""

    page_team = "session__task__team"

    list_select_related: ClassVar[tuple[str, ...]] = ("session__task",)
    search_fields: ClassVar[tuple[str, ...]] = ("=session__id", "session__task__title")

    def page_of(self, row: Any) -> str:
        """Return the page of the row's session."""
        return session_page(row.session)

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
