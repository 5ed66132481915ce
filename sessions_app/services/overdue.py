"""Prompts that have waited too long for an agent: one deadline for its start and the delivery together."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from sessions_app.domain.recovery import FUTURE
from sessions_app.domain.states import OPEN_RUN_STATES, DesiredState, PromptState
from sessions_app.models import Prompt, Run


def overdue_prompts() -> QuerySet[Prompt]:
    """Every prompt that is overdue."""
    return Prompt.objects.filter(is_overdue())


def is_overdue(now: datetime | None = None) -> Q:
    """Which prompts wait for their session's agent, and for no turn, for longer than ``KANDEV_START_TIMEOUT``.

    A prompt behind a turn waits for its end; one of a session that was stopped, for nobody.
    """
    return overdue_between(*since_and_beyond(now))


def since_and_beyond(now: datetime | None = None) -> tuple[datetime, datetime]:
    """What ``overdue_between`` takes: since when whoever is overdue has waited, and after which no end is believed."""
    moment = now or timezone.now()
    return moment - timedelta(seconds=settings.KANDEV_START_TIMEOUT), moment + FUTURE


def overdue_between(since: datetime, beyond: datetime) -> Q:
    """As ``is_overdue`` at such a time."""
    at_work = Q(state__in=OPEN_RUN_STATES) | Q(ended_at__gt=since, ended_at__lte=beyond)
    waits = Q(
        state__in=(PromptState.QUEUED, PromptState.SENDING),
        created_at__lte=since,
        session__desired_state=DesiredState.RUNNING,
    )
    return waits & Q(~Exists(Run.objects.filter(at_work, session=OuterRef("session"))))
