"""Build the histories of sessions outside of every transaction, in limited processes."""

from __future__ import annotations

import asyncio
import logging
import uuid

from sessions_app.confined.client import PoolUnavailable
from sessions_app.kernel.database_threads import DatabaseThread
from sessions_app.models import TaskSession
from sessions_app.recovery.services import history
from sessions_app.recovery.services.assessment import assess_session
from sessions_app.recovery.services.history import HistoryRequest
from sessions_app.sessions.services.status import tells_history

log = logging.getLogger(__name__)


async def prepare(database: DatabaseThread, session_id: uuid.UUID) -> None:
    """Build and store the session's history if the next prompt will carry it and it is not current.

    If no process can build it now, that is only logged: whatever needs the history asks for it again.
    """
    request = await database(_load_request, session_id)
    if request is None:
        return
    try:
        # Not on the thread of the database: all sessions wait for that one.
        built = await asyncio.to_thread(history.build, request)
    except PoolUnavailable as error:
        log.warning("session %s: its history could not be built yet: %s", session_id, error)
        return
    await database(history.store, request, built)


def _load_request(session_id: uuid.UUID) -> HistoryRequest | None:
    rows = TaskSession.objects.select_related("agent_profile", "executor", "task")
    session = rows.filter(id=session_id).first()
    if session is None or not tells_history(session, assess_session(session)):
        return None
    return history.load_request(session)
