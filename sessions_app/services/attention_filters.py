"""Query conditions for sessions that need a person, and for prompts that are overdue."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from sessions_app.domain.agent_programs import NEEDS_PERSON_CODES
from sessions_app.domain.attention import LOOK_KINDS
from sessions_app.domain.recovery import MAX_CLOCK_SKEW
from sessions_app.domain.states import OPEN_RUN_STATES, DesiredState, PromptState, SessionState
from sessions_app.models import AttentionItem, PermissionRequest, Prompt, Run


def overdue_prompts() -> QuerySet[Prompt]:
    """Every prompt that is overdue."""
    return Prompt.objects.filter(overdue_filter())


def overdue_filter(now: datetime | None = None) -> Q:
    """Which prompts wait for their session's agent, and for no turn, for longer than ``KANDEV_START_TIMEOUT``.

    A prompt behind a turn waits for its end; one of a session that was stopped, for nobody.
    """
    moment = now or timezone.now()
    # an end that lies in the future by more than clocks may differ was written under a wrong clock: it does not count
    since, beyond = moment - timedelta(seconds=settings.KANDEV_START_TIMEOUT), moment + MAX_CLOCK_SKEW
    at_work = Q(state__in=OPEN_RUN_STATES) | Q(ended_at__gt=since, ended_at__lte=beyond)
    waits = Q(
        state__in=(PromptState.QUEUED, PromptState.SENDING),
        created_at__lte=since,
        session__desired_state=DesiredState.RUNNING,
    )
    return waits & Q(~Exists(Run.objects.filter(at_work, session=OuterRef("session"))))


def awaits_permission() -> Exists:
    """The agent asks for a permission."""
    return Exists(PermissionRequest.objects.filter(session=OuterRef("pk"), state="pending"))


def has_held_prompt() -> Exists:
    """It is not known whether the agent has a prompt."""
    return Exists(Prompt.objects.filter(session=OuterRef("pk"), state=PromptState.HELD))


def has_interrupted_prompt() -> Exists:
    """The agent was interrupted in a turn that nobody has settled yet, and that nobody stopped."""
    open_ones = Prompt.objects.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    open_ones = open_ones.exclude(session__desired_state=DesiredState.STOPPED)
    return Exists(open_ones.filter(session=OuterRef("pk")))


def has_overdue_prompt() -> Exists:
    """A prompt has waited too long for an agent."""
    return Exists(Prompt.objects.filter(overdue_filter(), session=OuterRef("pk")))


def has_given_up() -> Q:
    """It failed, and nothing tries again by itself, or nothing but a person can help."""
    return Q(state=SessionState.ERROR) & (Q(next_restart_at=None) | Q(error_code__in=NEEDS_PERSON_CODES))


def has_open_item() -> Exists:
    """Something was raised for it that wants to be done, not only seen."""
    items = AttentionItem.objects.filter(resolved_at=None).exclude(kind__in=LOOK_KINDS)
    return Exists(items.filter(session=OuterRef("pk")))


def needs_person() -> Q:
    """Any of these."""
    return (
        Q(awaits_permission())
        | Q(has_held_prompt())
        | Q(has_interrupted_prompt())
        | Q(has_overdue_prompt())
        | Q(has_open_item())
        | has_given_up()
    )
