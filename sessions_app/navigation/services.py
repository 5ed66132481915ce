"""The sessions and tasks that a user moves between: listed, found by what was typed, and marked as seen or pinned.

Each list is bounded and takes a constant number of queries.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from django.contrib.auth.models import User
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from sessions_app.board.services.board import SessionRow, session_rows
from sessions_app.kernel.rules.states import TaskState
from sessions_app.models import AttentionItem, Message, SessionMark, Task, TaskSession
from sessions_app.sessions.rules.situation_facts import Label
from sessions_app.sessions.rules.situations import status_label
from sessions_app.sessions.services.queries import SECRET_FIELDS

MAX_FOUND: Final = 8
"""Tasks and sessions that the palette shows of each."""
MAX_QUERY: Final = 200
"""Characters of a query that are used."""
NEWEST_TASKS: Final = 30
"""Tasks whose sessions are offered before anything is typed."""
MAX_LISTED: Final = 40
"""Sessions in the list beside a conversation: of each reason to be there."""
_OVER: Final = (TaskState.DONE, TaskState.CANCELLED)


class ListGroup(StrEnum):
    """Parts of the list of sessions, in their order."""

    PINNED = "Pinned"
    NEEDS = "Needs you"
    OTHERS = "Sessions"


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session with the label of its status."""

    session: TaskSession
    label: Label
    needs_person: bool = False
    is_pinned: bool = False
    is_unread: bool = False
    """Whether something was said in it since the user last saw it."""

    @property
    def group(self) -> ListGroup:
        """Where it is in the list."""
        if self.is_pinned:
            return ListGroup.PINNED
        return ListGroup.NEEDS if self.needs_person else ListGroup.OTHERS


def find_tasks(user: User, text: str) -> list[Task]:
    """Return the newest tasks of the user's teams whose title contains ``text``; those that are archived too."""
    tasks = Task.objects.visible_to(user).select_related("team").defer("description")
    found = tasks.filter(title__icontains=text[:MAX_QUERY]).order_by("-created_at", "id")
    return list(found[:MAX_FOUND])


def find_sessions(user: User, text: str) -> list[ListedSession]:
    """Return the newest sessions whose task, agent or branch contains ``text``; without one, those not over."""
    sessions = TaskSession.objects.visible_to(user)
    if not text:
        return describe_sessions(_newest_ids(sessions, user)[:MAX_FOUND], user)
    words = text[:MAX_QUERY]
    named = Q(task__title__icontains=words) | Q(agent_profile__name__icontains=words)
    matching = sessions.filter(named | Q(worktree_branch__icontains=words)).order_by("-created_at", "id")
    return describe_sessions(list(matching.values_list("id", flat=True)[:MAX_FOUND]), user)


def _newest_ids(sessions: QuerySet[TaskSession], user: User) -> list[uuid.UUID]:
    """Return the ids of the sessions of the newest tasks that are not over, the newest first.

    The tasks first, which the database reads from an index in this order.
    """
    tasks = Task.objects.visible_to(user).filter(archived_at=None).exclude(state__in=_OVER)
    newest = list(tasks.order_by("-created_at", "id").values_list("id", flat=True)[:NEWEST_TASKS])
    of_tasks = sessions.filter(task__in=newest).order_by("-created_at", "id")
    return list(of_tasks.values_list("id", flat=True)[:NEWEST_TASKS])


def list_sessions(user: User, current: uuid.UUID | None) -> list[ListedSession]:
    """Return the sessions beside a conversation: pinned ones, those that need a person, the newest, and ``current``.

    In the order of their groups, and in each the newest first, so that no row moves while its agent works.
    """
    visible = TaskSession.objects.visible_to(user)
    pinned = visible.filter(user_marks__user=user, user_marks__pinned_at__isnull=False)
    items = AttentionItem.objects.filter(resolved_at=None, session__in=visible, task__archived_at=None)
    needing = items.exclude(task__state__in=_OVER).order_by("-created_at").values_list("session", flat=True)
    ids = list(pinned.order_by("-created_at").values_list("id", flat=True)[:MAX_LISTED])
    ids += [*needing[:MAX_LISTED], *_newest_ids(visible, user)]
    if current is not None:
        ids += visible.filter(id=current).values_list("id", flat=True)
    listed = describe_sessions(list(dict.fromkeys(ids)), user)
    listed.sort(key=lambda each: (each.session.created_at, each.session.id), reverse=True)
    return sorted(listed, key=lambda each: list(ListGroup).index(each.group))


def describe_sessions(ids: Sequence[uuid.UUID], user: User) -> list[ListedSession]:
    """Return the sessions with these ids in their order, with labels and marks; a constant number of queries."""
    newest = Message.objects.filter(session=OuterRef("pk")).order_by("-updated_seq").values("updated_seq")[:1]
    rows = TaskSession.objects.filter(id__in=ids).select_related("task", "agent_profile")
    rows = rows.defer("task__description", *SECRET_FIELDS)
    described = session_rows(list(rows.annotate(said=Subquery(newest))), user)
    marks = {mark.session_id: mark for mark in SessionMark.objects.filter(user=user, session__in=list(described))}
    return [_listed(described[each], marks.get(each), user) for each in ids if each in described]


def _listed(row: SessionRow, mark: SessionMark | None, user: User) -> ListedSession:
    """Return a row of the list; a session that the user has never opened is unread only if it is the user's own."""
    session: Any = row.session  # the type checker does not know the annotated field
    seen = mark.seen_seq if mark is not None else 0
    concerns = mark is not None or session.owner_id == user.pk
    return ListedSession(
        session,
        status_label(row.facts),
        needs_person=row.needs.needs_person,
        is_pinned=mark is not None and mark.pinned_at is not None,
        is_unread=concerns and session.said is not None and session.said > seen,
    )


def mark_seen(session: TaskSession, user: User, seq: int) -> None:
    """Record that a page has shown the user the conversation up to ``seq``; what was seen stays seen."""
    seq = min(seq, session.last_seq)
    mark = SessionMark.objects.filter(session=session, user_id=user.pk).first()
    if mark is None:
        row = SessionMark(session=session, user_id=user.pk, seen_seq=seq)
        SessionMark.objects.bulk_create([row], ignore_conflicts=True)
    elif mark.seen_seq < seq:
        SessionMark.objects.filter(id=mark.id, seen_seq__lt=seq).update(seen_seq=seq)


def set_pinned(session: TaskSession, user: User, *, pinned: bool) -> None:
    """Keep a session at the top of the user's list, or no longer; repeating it changes nothing."""
    values = {"pinned_at": timezone.now() if pinned else None}
    SessionMark.objects.update_or_create(session=session, user=user, defaults=values)
