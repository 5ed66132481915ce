"""The actions of the list of sessions. Each writes down what is asked, and reports what was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from executors_app.errors import ExecutorError
from executors_app.staff_admin import StaffOnly
from sessions_app.domain.states import ENDED_STATES
from sessions_app.models import IntentKind, TaskSession
from sessions_app.services import intents
from sessions_app.services.errors import SessionsError, TerminalState
from sessions_app.services.sweeps import ask_for_sweep

MOST_REASONS: Final = 10
"""Refusals that are told one by one."""

Ask = Callable[[TaskSession, Any], str]
"""Asks something of a session for a user; why there was nothing to ask, or the empty text."""


class SessionOrders(StaffOnly):
    """Resume, stop, sweep now: for the sessions that are ticked."""

    actions = ("resume", "stop", "sweep_now")

    @admin.action(description="Resume selected sessions", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Ask for each to run again, as *Resume session* on its page does."""
        self._ask(request, queryset, _resume, "asked to resume")

    @admin.action(description="Stop selected sessions", permissions=["change"])
    def stop(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Ask for each execution to end; the sessions can be resumed later."""
        self._ask(request, queryset, _stop, "asked to stop")

    @admin.action(description="Sweep selected sessions now", permissions=["change"])
    def sweep_now(self, request: HttpRequest, queryset: QuerySet[TaskSession]) -> None:
        """Ask the supervisor to look after these sessions at once."""
        ids = list(queryset.values_list("id", flat=True))
        asked = ask_for_sweep(request.user, sessions=ids)
        text = f"A sweep of {_sessions(len(ids))} was asked for. Sweep request {asked.id} will tell what came of it."
        self.message_user(request, text, messages.SUCCESS)

    def _ask(self, request: HttpRequest, queryset: QuerySet[TaskSession], ask: Ask, done: str) -> None:
        asked, refused = 0, []
        for session in queryset.select_related("task", "agent_profile", "executor"):
            reason = _refusal(ask, session, request.user)
            if reason:
                refused.append(f"{session} ({session.task}): {reason}")
            else:
                asked += 1
                self.log_change(request, session, done.capitalize())
        self._report(request, f"{_sessions(asked)} {done}", asked, refused)

    def _report(self, request: HttpRequest, done: str, asked: int, refused: list[str]) -> None:
        told = f"{done}, {len(refused)} refused." if refused else f"{done}."
        self.message_user(request, told, messages.SUCCESS if asked else messages.WARNING)
        for line in refused[:MOST_REASONS]:
            self.message_user(request, line, messages.WARNING)
        if len(refused) > MOST_REASONS:
            self.message_user(request, f"… and {len(refused) - MOST_REASONS} more.", messages.WARNING)


def _sessions(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'}"


def _refusal(ask: Ask, session: TaskSession, user: Any) -> str:
    try:
        return ask(session, user)
    except (SessionsError, ExecutorError) as error:
        return error.message


def _resume(session: TaskSession, user: Any) -> str:
    intents.resume(session.id, user)
    ordered = session.intents.filter(kind=IntentKind.START, done_at=None).exists()
    return "" if ordered else "It is running already."


def _stop(session: TaskSession, user: Any) -> str:
    if session.state in ENDED_STATES:
        raise TerminalState
    intents.stop(session.id, user)
    return ""
