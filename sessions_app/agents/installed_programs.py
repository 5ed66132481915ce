"""Try sessions again once the program that they lacked is installed."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from typing import Final

from executors_app.encryption import SecretUnreadable
from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from executors_app.plugins import UnknownPlugin
from executors_app.wire.executions import LOCAL
from executors_app.wire.protocol import Code
from sessions_app.agents.services.agent_setup import has_owner_in_team, retry_session, waiting_for_a_person
from sessions_app.models import (
    TaskSession,
)

AT_ONCE: Final = 200
"""Sessions that are read at once."""


class InstalledPrograms:
    """Watches the sessions whose program was missing on this machine.

    A session is tried again once its program appears: it must have been seen missing by this process first, so a
    start that fails for another reason is not repeated.
    """

    def __init__(self) -> None:
        self._missing: set[uuid.UUID] = set()

    @property
    def is_watching(self) -> bool:
        """Whether a session waits for its program, whose installation changes nothing in the database."""
        return bool(self._missing)

    def retry_sessions(self) -> int:
        """Request a start for each session whose program has appeared since the last call; return how many."""
        missing, ready = set(), []
        for session in self._load_waiting():
            if not _is_installed(session):
                missing.add(session.id)
            elif session.id in self._missing:
                ready.append(session.id)
        self._missing = missing
        return sum(retry_session(session_id) for session_id in ready if has_owner_in_team(session_id))

    def _load_waiting(self) -> Iterator[TaskSession]:
        here = ExecutorRunning.objects.filter(runtime=LOCAL, host_id=identity.host_id())
        rows = waiting_for_a_person(TaskSession.objects.all()).filter(
            error_code=Code.PROGRAM_MISSING, agent_execution_id__in=here.values("id")
        )
        # Without an order: to sort by id, SQLite would read all sessions by their ids instead of those with an error.
        # All of them, some at a time: those whose program stays missing must not keep the others waiting.
        yield from rows.select_related("agent_profile", "executor").order_by().iterator(chunk_size=AT_ONCE)


def _is_installed(session: TaskSession) -> bool:
    try:
        argv, env = session.agent_profile.argv(LOCAL), session.agent_profile.env
    except (SecretUnreadable, UnknownPlugin):
        return False
    return bool(argv) and shutil.which(argv[0], path=env.get("PATH")) is not None
