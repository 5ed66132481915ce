"""The same order for many sessions at once; each row is on its own, and each outcome is told."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db import DatabaseError

from sessions_app.models import TaskSession
from sessions_app.services import intents
from sessions_app.services.catalogue import visible_sessions
from sessions_app.services.errors import Invalid, NotFound, ReadOnly, SessionsError
from sessions_app.services.rights import writable_teams

log = logging.getLogger(__name__)

LIMIT: Final = 200
"""Sessions of one request."""
ORDERS: Final[Mapping[str, Callable[[uuid.UUID, Any], Any]]] = {
    "resume": intents.resume,
    "stop": intents.stop,
}
UNEXPECTED: Final = "internal_error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one row; without a code it was ordered."""

    session_id: uuid.UUID
    session: TaskSession | None
    """None: there is none that the user may see."""
    code: str = ""
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the order was taken."""
        return not self.code


def order_many(user: Any, action: str, ids: Sequence[uuid.UUID]) -> list[Outcome]:
    """Give one of ``ORDERS`` to each session, in the order of ``ids``; a row that fails stops no other.

    Raises Invalid for another action, for none and for more than ``LIMIT`` sessions.
    """
    if action not in ORDERS:
        raise Invalid(f"action is one of {', '.join(ORDERS)}.", field="action")
    wanted = list(dict.fromkeys(ids))
    if not wanted or len(wanted) > LIMIT:
        raise Invalid(f"Choose 1 to {LIMIT} sessions.", field="sessions")
    found = {one.id: one for one in visible_sessions(user).filter(id__in=wanted)}
    writable = set(writable_teams(user).values_list("id", flat=True))
    return [_order(user, action, one, found.get(one), writable) for one in wanted]


def _order(user: Any, action: str, session_id: uuid.UUID, row: TaskSession | None, writable: set[int]) -> Outcome:
    try:
        if row is None:
            raise NotFound
        if row.task.team_id not in writable:
            raise ReadOnly
        ORDERS[action](row.id, user)
    except SessionsError as error:
        return Outcome(session_id, row, error.code, error.message)
    except DatabaseError:
        raise  # of the whole request: the next row would meet it too
    except Exception:  # one bad row never stops the rest
        log.exception("session %s: the order %s could not be written", session_id, action)
        return Outcome(session_id, row, UNEXPECTED, "Something went wrong with this one; the log says what.")
    return Outcome(session_id, row)
