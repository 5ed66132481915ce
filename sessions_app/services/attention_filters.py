"""Query conditions for sessions that need a person, and for prompts that are overdue."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES
from sessions_app.domain.attention import LOOK_KINDS
from sessions_app.domain.recovery import MAX_CLOCK_SKEW
from sessions_app.domain.states import OPEN_RUN_STATES, DesiredState, PermissionState, PromptState, SessionState
from sessions_app.models import AttentionItem, PermissionRequest, Prompt, Run


def overdue_prompts() -> QuerySet[Prompt]:
    """Return all overdue prompts."""
    return Prompt.objects.filter(overdue_filter())


def overdue_filter(now: datetime | None = None) -> Q:
    """Filter prompts that have waited for an agent for longer than ``KANDEV_START_TIMEOUT``.

    A prompt that waits for the end of a turn is not overdue, nor is one of a session that was stopped.
    """
    moment = now or timezone.now()
    # An end further in the future than clocks may differ was written under a wrong clock and is ignored.
    since, beyond = moment - timedelta(seconds=settings.KANDEV_START_TIMEOUT), moment + MAX_CLOCK_SKEW
    at_work = Q(state__in=OPEN_RUN_STATES) | Q(ended_at__gt=since, ended_at__lte=beyond)
    waits = Q(
        state__in=(PromptState.QUEUED, PromptState.SENDING),
        created_at__lte=since,
        session__desired_state=DesiredState.RUNNING,
    )
    return waits & Q(~Exists(Run.objects.filter(at_work, session=OuterRef("session"))))


def awaits_answer(**wanted: str) -> Exists:
    """Filter sessions whose agent waits for a permission or an answer; ``wanted`` narrows the requests."""
    return Exists(PermissionRequest.objects.filter(session=OuterRef("pk"), state=PermissionState.PENDING, **wanted))


def has_held_prompt() -> Exists:
    """Filter sessions with a held prompt."""
    return Exists(Prompt.objects.filter(session=OuterRef("pk"), state=PromptState.HELD))


def has_interrupted_prompt() -> Exists:
    """Filter sessions with an interrupted turn that nobody has settled or stopped."""
    open_ones = Prompt.objects.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    open_ones = open_ones.exclude(session__desired_state=DesiredState.STOPPED)
    return Exists(open_ones.filter(session=OuterRef("pk")))


def has_overdue_prompt() -> Exists:
    """Filter sessions with an overdue prompt."""
    return Exists(Prompt.objects.filter(overdue_filter(), session=OuterRef("pk")))


def has_given_up() -> Q:
    """Filter failed sessions that are not retried automatically, or that only a person can fix."""
    return Q(state=SessionState.ERROR) & (Q(next_restart_at=None) | Q(error_code__in=NEEDS_PERSON_CODES))


def has_open_item() -> Exists:
    """Filter sessions with an open item that needs an action."""
    items = AttentionItem.objects.filter(resolved_at=None).exclude(kind__in=LOOK_KINDS)
    return Exists(items.filter(session=OuterRef("pk")))


def needs_person() -> Q:
    """Filter sessions that need a person for any of these reasons."""
    return (
        Q(awaits_answer())
        | Q(has_held_prompt())
        | Q(has_interrupted_prompt())
        | Q(has_overdue_prompt())
        | Q(has_open_item())
        | has_given_up()
    )
