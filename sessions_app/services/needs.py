"""Which sessions a person has to look at, as conditions of a query: for lists, counts and filters."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, Q

from sessions_app.domain.agent_programs import NEEDS_PERSON
from sessions_app.domain.attention import LOOK_KINDS
from sessions_app.domain.states import DesiredState, PromptState, SessionState
from sessions_app.models import AttentionItem, PermissionRequest, Prompt
from sessions_app.services.overdue import is_overdue


def asks() -> Exists:
    """The agent asks for a permission."""
    return Exists(PermissionRequest.objects.filter(session=OuterRef("pk"), state="pending"))


def doubts() -> Exists:
    """It is not known whether the agent has a prompt."""
    return Exists(Prompt.objects.filter(session=OuterRef("pk"), state=PromptState.HELD))


def cut_short() -> Exists:
    """The agent was interrupted in a turn that nobody has settled yet, and that nobody stopped."""
    open_ones = Prompt.objects.filter(state=PromptState.INTERRUPTED, continued_by=None, resent_as=None)
    open_ones = open_ones.exclude(session__desired_state=DesiredState.STOPPED)
    return Exists(open_ones.filter(session=OuterRef("pk")))


def overdue() -> Exists:
    """A prompt has waited too long for an agent."""
    return Exists(Prompt.objects.filter(is_overdue(), session=OuterRef("pk")))


def given_up() -> Q:
    """It failed, and nothing tries again by itself, or nothing but a person can help."""
    return Q(state=SessionState.ERROR) & (Q(next_restart_at=None) | Q(error_code__in=NEEDS_PERSON))


def raised() -> Exists:
    """Something was raised for it that wants to be done, not only seen."""
    items = AttentionItem.objects.filter(resolved_at=None).exclude(kind__in=LOOK_KINDS)
    return Exists(items.filter(session=OuterRef("pk")))


def somebody() -> Q:
    """Any of these."""
    return Q(asks()) | Q(doubts()) | Q(cut_short()) | Q(overdue()) | Q(raised()) | given_up()
