"""Who sits where, and whether they still may: asked anew for all of them at once, every few seconds."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session as Login
from django.utils import timezone

from sessions_app.live.close_codes import CloseCode
from sessions_app.models import ApiToken, Task, TaskSession
from sessions_app.services.api_tokens import as_holder
from sessions_app.services.errors import NotFound


@dataclass(frozen=True, slots=True)
class Badge:
    """A user, and what let them in: the key of a login, or the hash of a token's."""

    user_id: int
    login: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    password_mark: str = field(default="", repr=False)
    """Changes with the user's password, which ends every login."""
    only_reads: bool = False
    """Whether the token is one that changes nothing."""

    @classmethod
    def of_token(cls, token: ApiToken) -> Badge:
        """What a key of the API gives."""
        return cls(token.user_id, token=token.secret_hash, only_reads=token.reads_only)

    def user(self) -> Any:
        """The user as of now; NotFound if they are not active any more."""
        found = get_user_model().objects.filter(pk=self.user_id, is_active=True).first()
        if found is None:
            raise NotFound
        return as_holder(found, reads_only=self.only_reads)


@dataclass(frozen=True, slots=True)
class Seat:
    """Somebody's place at a session, or at all sessions of a task."""

    badge: Badge
    task_id: uuid.UUID
    session_id: uuid.UUID | None = None


def refusals(seats: Collection[Seat]) -> dict[Seat, CloseCode]:
    """Whose seat is lost and why; a constant number of statements."""
    # In this order: a user who is deleted in between has lost the login, and not just the place.
    open_places = _open_places(seats)
    known = _still_known({seat.badge for seat in seats})
    return {
        seat: CloseCode.NOT_FOUND if seat.badge in known else CloseCode.NOT_AUTHENTICATED
        for seat in seats
        if seat.badge not in known or not open_places.has(seat)
    }


def _still_known(badges: Collection[Badge]) -> set[Badge]:
    """Those whose user is active and whose login or token is still good."""
    users = get_user_model().objects.filter(pk__in={badge.user_id for badge in badges}, is_active=True)
    marks = {user.pk: user.get_session_auth_hash() for user in users}
    logins = Login.objects.filter(
        session_key__in={badge.login for badge in badges if badge.login}, expire_date__gt=timezone.now()
    )
    tokens = ApiToken.objects.live().filter(secret_hash__in={badge.token for badge in badges if badge.token})
    keys: set[tuple[int | None, str]] = {(None, key) for key in logins.values_list("session_key", flat=True)}
    keys.update(tokens.values_list("user_id", "secret_hash"))
    return {badge for badge in badges if badge.user_id in marks and _holds(badge, marks[badge.user_id], keys)}


def _holds(badge: Badge, mark: str, keys: Collection[tuple[int | None, str]]) -> bool:
    if badge.token is not None:
        return (badge.user_id, badge.token) in keys
    return badge.password_mark == mark and (None, badge.login) in keys


@dataclass(frozen=True, slots=True)
class _Places:
    """What is there, and who is in the team of which task."""

    sessions: set[uuid.UUID]
    members: set[tuple[uuid.UUID, int]]

    def has(self, seat: Seat) -> bool:
        there = seat.session_id is None or seat.session_id in self.sessions
        return there and (seat.task_id, seat.badge.user_id) in self.members


def _open_places(seats: Collection[Seat]) -> _Places:
    """For many users at once what ``visible_to`` says for one."""
    tasks = Task.objects.filter(
        id__in={seat.task_id for seat in seats}, team__user__in={seat.badge.user_id for seat in seats}
    )
    sessions = TaskSession.objects.filter(id__in={seat.session_id for seat in seats if seat.session_id})
    return _Places(set(sessions.values_list("id", flat=True)), set(tasks.values_list("id", "team__user")))
