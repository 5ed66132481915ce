"""Who looks at a session's page right now: told by the page itself, known to every process, over by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.utils import timezone

from sessions_app.models import Presence, TaskSession
from sessions_app.services.attention import acknowledge_session

STAYS: Final = timedelta(seconds=45)
"""How long a word of the page holds; it says it again every 20 seconds while somebody looks."""


def arrive(session: TaskSession, user: Any) -> None:
    """The user looks at the session: what wants no more than that is settled for them."""
    row = Presence(session=session, user_id=user.pk, expires_at=timezone.now() + STAYS)
    Presence.objects.bulk_create(
        [row], update_conflicts=True, unique_fields=["session", "user"], update_fields=["expires_at"]
    )
    acknowledge_session(session, user, only_looks=True)


def leave(session: TaskSession, user: Any) -> None:
    """The user looks elsewhere; another page of theirs on this session says so again."""
    Presence.objects.filter(session=session, user_id=user.pk).delete()


def is_present(session: TaskSession, user: Any) -> bool:
    """Whether the user looks at the session now."""
    return Presence.objects.filter(session=session, user_id=user.pk, expires_at__gt=timezone.now()).exists()
