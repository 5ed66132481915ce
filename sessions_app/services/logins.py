"""Where somebody is logged in, and ending it everywhere but here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session as Login
from django.utils import timezone


def other_logins(user: Any, here: str | None) -> int:
    """How many logins of ``user`` there are beside the one with the key ``here``."""
    return sum(1 for _ in _others(user, here))


def end_other_logins(user: Any, here: str | None) -> int:
    """End them; what is open through one of them is closed within seconds. How many there were."""
    keys = list(_others(user, here))
    Login.objects.filter(session_key__in=keys).delete()
    return len(keys)


def _others(user: Any, here: str | None) -> Iterator[str]:
    """A login does not tell whose it is but to who reads it; there are as many as people and browsers."""
    for login in Login.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=here).iterator():
        if str(login.get_decoded().get(SESSION_KEY)) == str(user.pk):
            yield login.session_key
