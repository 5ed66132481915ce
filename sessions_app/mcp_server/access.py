"""Who calls, and which sessions they may see and change: what the views of the REST API check, in the same order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sessions_app.accounts.authorization import may_write_session
from sessions_app.live.authentication import Principal
from sessions_app.models import TaskSession
from sessions_app.services import catalogue
from sessions_app.services.errors import NotFound, ReadOnly

ReportProgress = Callable[[float, float, str], Awaitable[None]]
"""Report (progress, total, message) to the client, if it asked for that."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, restricted to what their token allows, and the credential that the hub watches."""

    user: Any
    principal: Principal


def visible_session(user: Any, session_id: UUID) -> TaskSession:
    """Return a session of the user's teams. Raises NotFound for any other."""
    found: TaskSession | None = catalogue.visible_sessions(user).filter(id=session_id).first()
    if found is None:
        raise NotFound("There is no such session.")
    return found


def writable_session(user: Any, session_id: UUID) -> TaskSession:
    """Return a session that the user may change. Raises NotFound, and ReadOnly for a viewer."""
    session = visible_session(user, session_id)
    if not may_write_session(user, session):
        raise ReadOnly
    return session
