"""The inbox: what needs a user, the user's marks on it, and who has which session's page open."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db.models import Case, Count, Exists, IntegerField, OuterRef, Q, QuerySet, Subquery, Value, When
from django.utils import timezone

from executors_app.models import PROFILE_SECRETS
from executors_app.orm import MOMENT_PLACEHOLDER, NUMBER_PLACEHOLDER, PreparedQuery
from sessions_app.accounts.authorization import may_write
from sessions_app.accounts.team_scope import teams_of
from sessions_app.agents.rules.agent_programs import NEEDS_PERSON_CODES
from sessions_app.attention.raising import resolve_items
from sessions_app.attention.rules.notices import LOOK_KINDS, PRIORITY, SHARED_KINDS, STAFF_KINDS, AttentionKind
from sessions_app.finish.rules.finish import FAILED_STATES
from sessions_app.kernel.rules.states import (
    OPEN_RUN_STATES,
    DesiredState,
    PermissionState,
    PromptState,
    SessionState,
    TaskState,
)
from sessions_app.models import (
    AttentionItem,
    AttentionMark,
    BudgetHold,
    FinishIntent,
    PermissionRequest,
    Presence,
    Prompt,
    Suspension,
    Task,
    TaskSession,
    Turn,
    session_transaction,
)
from sessions_app.recovery.rules.resumability import MAX_CLOCK_SKEW

_ENDED_TASK_STATES: Final = (TaskState.DONE, TaskState.CANCELLED)
WORKFLOW_TEXTS: Final = ("workflow__text", "workflow__files", "workflow__confirmed")
"""Large fields that no inbox shows."""
_NO_USER: Final = 0
"""An id that no user has, so that every item counts as unseen."""


def _seen_filter(user_id: int) -> QuerySet[AttentionMark]:
    """Return a subquery for items: the marks of a user who has seen them."""
    return AttentionMark.objects.filter(item=OuterRef("pk"), user_id=user_id, acknowledged_at__isnull=False)


def visible_items(user: User, moment: datetime | None = None) -> QuerySet[AttentionItem]:
    """Return the items of the user's teams, for staff also those that only staff can resolve, with the user's marks.

    ``moment`` is now, unless given. Adds ``acknowledged_at``, ``dismissed_at``, ``is_present`` (the user has its
    session's page open), ``may_open`` (its session or workflow belongs to a team of the user's, or it is about the
    deployment) and ``rank`` (lowest first).
    """
    marks = AttentionMark.objects.filter(item=OuterRef("pk"), user_id=user.pk)
    now = moment or timezone.now()
    present = Presence.objects.filter(session=OuterRef("session"), user_id=user.pk, expires_at__gt=now)
    teams = teams_of(user)
    audience = Q(task__team__in=teams) | Q(workflow__team__in=teams)
    if user.is_authenticated and user.is_active and user.is_staff:
        audience |= Q(kind__in=STAFF_KINDS)
    rank = Case(*(When(kind=kind, then=Value(n)) for kind, n in PRIORITY.items()), output_field=IntegerField())
    rows: QuerySet[AttentionItem] = AttentionItem.objects.filter(audience).annotate(
        acknowledged_at=Subquery(marks.values("acknowledged_at")[:1]),
        dismissed_at=Subquery(marks.values("dismissed_at")[:1]),
        is_present=Exists(present),
        may_open=Q(kind=AttentionKind.SYSTEM)
        | Q(Exists(teams.filter(Q(pk=OuterRef("task__team")) | Q(pk=OuterRef("workflow__team"))))),
        rank=rank,
    )
    return rows.select_related("task__team", "session__agent_profile", "workflow__team").defer(
        *(f"session__agent_profile__{name}" for name in PROFILE_SECRETS), *WORKFLOW_TEXTS
    )


def open_items_for(user: User, moment: datetime | None = None) -> QuerySet[AttentionItem]:
    """Return the user's open items that are not dismissed and whose task is not over, by priority."""
    rows: Any = visible_items(user, moment)  # the type checker does not know the annotated fields
    rows = rows.filter(resolved_at=None, dismissed_at=None, task__archived_at=None)
    found: QuerySet[AttentionItem] = rows.exclude(task__state__in=_ENDED_TASK_STATES).order_by(
        "rank", "-created_at", "id"
    )
    return found


def own_items(user: User) -> Q:
    """Filter items of the user's own sessions, runs and workflows.

    A workflow is the user's own if the user created it or enabled its triggers, a failed merge or push if the user has
    requested one in that session.
    """
    made = Q(workflow__created_by=user.pk) | Q(workflow__triggers_enabled_by=user.pk)
    failed = FinishIntent.objects.filter(session=OuterRef("session"), by=user.pk, state__in=FAILED_STATES)
    requested = Q(kind=AttentionKind.FINISH) & Q(Exists(failed))
    return Q(session__owner=user.pk) | Q(run__started_by=user.pk) | made | requested


def team_items(team: Group) -> QuerySet[AttentionItem]:
    """Return the open items of a team's workflows and unfinished tasks, for any user."""
    rows = AttentionItem.objects.filter(Q(task__team=team) | Q(workflow__team=team), resolved_at=None)
    rows = rows.filter(task__archived_at=None).exclude(task__state__in=_ENDED_TASK_STATES)
    return rows.select_related("task__team", "workflow__team").defer(*WORKFLOW_TEXTS)


def unseen_items_for(user: User, moment: datetime | None = None) -> QuerySet[AttentionItem]:
    """Return the open items that the user has neither seen nor has on the screen now."""
    rows: Any = open_items_for(user, moment)
    found: QuerySet[AttentionItem] = rows.filter(acknowledged_at=None, is_present=False)
    return found


def count_unseen(user: User) -> int:
    """Return how many items the user has not seen: the number in the header of every page."""
    if not user.is_authenticated or not user.is_active:
        return 0
    query = _UNSEEN_OF_STAFF if user.is_staff else _UNSEEN_OF_MEMBER
    ((count,),) = query.values(user.pk, timezone.now())
    return int(count)


def _prepare_count(*, is_staff: bool) -> PreparedQuery[AttentionItem]:
    """Prepare the count of unseen items: every page runs it, and it takes longer to compile than to run."""

    def count(user_id: int, moment: datetime) -> QuerySet[AttentionItem, Any]:
        unseen: Any = unseen_items_for(User(pk=user_id, is_staff=is_staff), moment).order_by()
        found: QuerySet[AttentionItem, Any] = unseen.values(all=Value(1)).annotate(n=Count("id")).values_list("n")
        return found

    return PreparedQuery(count, NUMBER_PLACEHOLDER, MOMENT_PLACEHOLDER)


_UNSEEN_OF_STAFF: Final = _prepare_count(is_staff=True)
_UNSEEN_OF_MEMBER: Final = _prepare_count(is_staff=False)


MAX_NOTICES: Final = 5
"""Items that a browser shows as notifications at once."""


def browser_notices(user: User) -> list[AttentionItem]:
    """Return the newest items that the user has not seen, of the kinds that the user's browsers show; often none."""
    chosen = User.objects.filter(pk=user.pk).values_list("notification_settings__browser_kinds", flat=True).first()
    if not chosen:
        return []
    return list(unseen_items_for(user).filter(kind__in=chosen.split()).order_by("-created_at", "id")[:MAX_NOTICES])


def acknowledge_item(item: AttentionItem, user: User) -> None:
    """Mark an item as seen by the user; it stays until it is resolved."""
    _set_marks([item.id], user, "acknowledged_at")


def dismiss_item(item: AttentionItem, user: User) -> None:
    """Hide an item from the user; other users still see it, unless a member settles it that way for everyone."""
    _set_marks([item.id], user, "acknowledged_at", "dismissed_at")
    if item.kind in SHARED_KINDS and item.session is not None and may_write(user, item.about.team):
        with session_transaction(item.session.id) as transaction:
            resolve_items(transaction, "dismissed", SHARED_KINDS, key=item.key)


def acknowledge_session(session: TaskSession, user: User, *, only_looks: bool = False) -> int:
    """Mark a session's open items as seen, with ``only_looks`` those that need no action; return how many were new."""
    rows = AttentionItem.objects.filter(session=session, resolved_at=None)
    if only_looks:
        rows = rows.filter(kind__in=LOOK_KINDS)
    return _acknowledge(rows, user)


def acknowledge_task(task: Task, user: User) -> int:
    """Mark the open items of all sessions of a task as seen; return how many were new."""
    return _acknowledge(AttentionItem.objects.filter(session__task=task, resolved_at=None), user)


def _acknowledge(rows: QuerySet[AttentionItem], user: User) -> int:
    found = list(rows.exclude(Exists(_seen_filter(user.pk))).values_list("id", flat=True))
    _set_marks(found, user, "acknowledged_at")
    return len(found)


def _set_marks(items: Collection[uuid.UUID], user: User, *names: str) -> None:
    """Set the marks that are not set yet; repeating this changes nothing."""
    now = timezone.now()
    rows = [AttentionMark(item_id=item, user_id=user.pk) for item in items]
    AttentionMark.objects.bulk_create(rows, ignore_conflicts=True)
    for name in names:
        AttentionMark.objects.filter(item__in=list(items), user_id=user.pk, **{name: None}).update(**{name: now})


def has_unseen(user_id: int, kind: str) -> Exists:
    """Filter sessions with an open item of a kind that the user has not seen."""
    items = AttentionItem.objects.filter(session=OuterRef("pk"), resolved_at=None, kind=kind)
    return Exists(items.exclude(Exists(_seen_filter(user_id))))


def open_kinds(session: TaskSession, user: User | None = None) -> dict[str, bool]:
    """Return the kinds of a session's open items, each with whether ``user`` has not seen one (None: any user)."""
    user_id = _NO_USER
    if user is not None:
        user_id = user.pk
    items = AttentionItem.objects.filter(session=session, resolved_at=None).order_by()
    items = items.annotate(is_new=~Exists(_seen_filter(user_id)))
    kinds: dict[str, bool] = {}
    for kind, is_new in items.values_list("kind", "is_new"):
        kinds[kind] = kinds.get(kind, False) or is_new
    return kinds


PRESENCE_LIFETIME: Final = timedelta(seconds=45)
"""How long a page counts as open after its last message; it sends one every 20 seconds while it is looked at."""


def mark_present(session: TaskSession, user: User) -> None:
    """Record that the user has the session's page open, which resolves items that need no action for the user."""
    row = Presence(session=session, user_id=user.pk, expires_at=timezone.now() + PRESENCE_LIFETIME)
    Presence.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["session", "user"], update_fields=["expires_at"]
    )
    acknowledge_session(session, user, only_looks=True)


def mark_absent(session: TaskSession, user: User) -> None:
    """Record that the user left the page. If another page of theirs shows the session, it reports again."""
    Presence.objects.filter(session=session, user_id=user.pk).delete()


def overdue_prompts() -> QuerySet[Prompt]:
    """Return all overdue prompts."""
    return Prompt.objects.filter(overdue_filter())


class OverdueLimits(NamedTuple):
    """Between which moments the wait of an overdue prompt lies."""

    since: datetime
    """A prompt that waits since then, or longer, is overdue."""
    beyond: datetime
    """An end after this is further in the future than clocks may differ: it is ignored."""


def overdue_limits() -> OverdueLimits:
    """Return the limits for this moment."""
    moment = timezone.now()
    return OverdueLimits(moment - timedelta(seconds=settings.KANDEV_START_TIMEOUT), moment + MAX_CLOCK_SKEW)


def overdue_filter(limits: OverdueLimits | None = None) -> Q:
    """Filter prompts that have waited for an agent for longer than ``KANDEV_START_TIMEOUT``.

    A prompt that waits for the end of a turn is not overdue, nor is one of a session that was stopped. ``limits`` are
    those of this moment if none are given.
    """
    since, beyond = limits or overdue_limits()
    at_work = Q(state__in=OPEN_RUN_STATES) | Q(ended_at__gt=since, ended_at__lte=beyond)
    waits = Q(
        state__in=(PromptState.QUEUED, PromptState.SENDING),
        created_at__lte=since,
        session__desired_state=DesiredState.RUNNING,
    )
    # The time of a suspension or of a budget's hold does not count: until then, nothing is sent.
    held_back = Q(ended_at=None, wakes_at__gt=since) | Q(ended_at__gt=since, ended_at__lte=beyond)
    over_budget = Q(ended_at=None) | Q(ended_at__gt=since, ended_at__lte=beyond)
    return (
        waits
        & Q(~Exists(Turn.objects.filter(at_work, session=OuterRef("session"))))
        & Q(~Exists(Suspension.objects.filter(held_back, session=OuterRef("session"))))
        & Q(~Exists(BudgetHold.objects.filter(over_budget, session=OuterRef("session"))))
    )


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


def has_overdue_prompt(limits: OverdueLimits | None = None) -> Exists:
    """Filter sessions with an overdue prompt; see ``overdue_filter``."""
    return Exists(Prompt.objects.filter(overdue_filter(limits), session=OuterRef("pk")))


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
