"""What sessions need: whether a person has to do something about them, and what holds their agents back.

A list asks this for all its sessions at once. The query has a subquery for each answer and takes longer to compile than
to run, so it is prepared.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from executors_app.orm import IDS_PLACEHOLDER, MOMENT_PLACEHOLDER, NUMBER_PLACEHOLDER, PreparedQuery
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.attention.services import inbox
from sessions_app.attention.services.inbox import OverdueLimits, has_unseen
from sessions_app.kernel.rules.states import PromptKind, PromptState, RequestKind
from sessions_app.models import (
    PLACEMENT_WAIT,
    QUEUED_FOR_CAPACITY,
    REFUSED_BY_HOST,
    BudgetHold,
    Intent,
    IntentKind,
    Prompt,
    Suspension,
    TaskSession,
)


class SessionNeeds(NamedTuple):
    """What a person has to do about a session, and what its agent waits for."""

    asks: bool
    """Whether a permission request is open."""
    questions: bool
    """Whether a question is open."""
    doubts: bool
    """Whether a prompt is held, because its delivery is in doubt."""
    cut_short: bool
    """Whether a turn was interrupted and nobody has settled that."""
    overdue: bool
    """Whether a prompt has waited too long for its agent."""
    raised: bool
    """Whether it has an open item in the inbox that needs an action."""
    memory: bool
    """Whether the user has not seen how it continued after a restart."""
    looks: bool
    """Whether the user has not seen that its agent has finished."""
    is_start_ordered: bool
    """Whether a start has been requested and not been carried out yet."""
    waits_to_start: bool
    """Whether that start waits for capacity or for a host."""
    suspension_reason: str | None
    """Why nothing is sent to its agent; None: it is not suspended."""
    is_over_budget: bool
    """Whether a budget holds its next prompt back."""
    is_retrying: bool
    """Whether its last turn is to be tried again."""

    @property
    def needs_person(self) -> bool:
        """Whether a person has to do something about it, as opposed to look at it."""
        return self.asks or self.questions or self.doubts or self.cut_short or self.overdue or self.raised


def load_needs(sessions: Collection[uuid.UUID], user: User) -> dict[uuid.UUID, SessionNeeds]:
    """Return what the sessions with these ids need, by id; one query."""
    if not sessions:
        return {}
    rows = _NEEDS.values(list(sessions), user.pk or 0, *inbox.overdue_limits())
    return {session_id: SessionNeeds(*needs) for session_id, *needs in rows}


def _needs_of(sessions: Any, user_id: int, since: datetime, beyond: datetime) -> QuerySet[TaskSession, Any]:
    starts = Intent.objects.filter(session=OuterRef("pk"), kind=IntentKind.START, done_at=None)
    prompts = Prompt.objects.filter(session=OuterRef("pk"))
    suspensions = Suspension.objects.filter(session=OuterRef("pk"), ended_at=None)
    waits_to_start = (
        Q(**{f"payload__{QUEUED_FOR_CAPACITY}": True})
        | Q(**{f"payload__{REFUSED_BY_HOST}__isnull": False})
        | Q(claimed_generation=None, **{f"payload__{PLACEMENT_WAIT}__isnull": False})
    )
    rows = TaskSession.objects.filter(id__among=sessions).annotate(
        asks=inbox.awaits_answer(kind=RequestKind.PERMISSION),
        questions=inbox.awaits_answer(kind=RequestKind.QUESTION),
        doubts=inbox.has_held_prompt(),
        cut_short=inbox.has_interrupted_prompt(),
        overdue=inbox.has_overdue_prompt(OverdueLimits(since, beyond)),
        raised=inbox.has_open_item(),
        memory=has_unseen(user_id, AttentionKind.RECEIPT),
        looks=has_unseen(user_id, AttentionKind.IDLE),
        is_start_ordered=Exists(starts),
        waits_to_start=Exists(starts.filter(waits_to_start)),
        suspension_reason=Subquery(suspensions.values("reason")[:1]),
        is_over_budget=Exists(BudgetHold.objects.filter(session=OuterRef("pk"), ended_at=None)),
        is_retrying=Exists(prompts.filter(kind=PromptKind.RETRY, state=PromptState.QUEUED)),
    )
    return rows.order_by().values_list("id", *SessionNeeds._fields)


_NEEDS: Final = PreparedQuery(
    _needs_of, IDS_PLACEHOLDER, NUMBER_PLACEHOLDER, MOMENT_PLACEHOLDER, MOMENT_PLACEHOLDER + timedelta(days=1)
)
