"""Try sessions again once the program that they lacked is installed."""

from __future__ import annotations

import shutil
import uuid
from typing import Final

from django.db.models import QuerySet

from executors_app.encryption import SecretUnreadable
from executors_app.machine.process import identity
from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.plugins import UnknownPlugin
from executors_app.wire.executions import LOCAL
from executors_app.wire.protocol import Code
from sessions_app.agents.services.agent_setup import has_owner_in_team, retry_session, waiting_for_a_person
from sessions_app.models import TaskSession

AT_ONCE: Final = 200
"""Sessions that are tried again at once: each is a transaction, and leases have to be renewed meanwhile."""


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
        """Request a start for sessions whose program has appeared since the last call; return for how many.

        All waiting sessions are looked at, so that those whose program stays missing keep no other one waiting, but
        each profile only once, and at most ``AT_ONCE`` are tried again: the rest follows in the next call.
        """
        waiting = dict(_waiting_here())
        profiles = AgentProfile.objects.in_bulk(set(waiting.values()))
        installed = {key for key, profile in profiles.items() if _is_installed(profile)}
        ready = [key for key, profile in waiting.items() if profile in installed and key in self._missing]
        self._missing = {key for key, profile in waiting.items() if profile not in installed} | set(ready[AT_ONCE:])
        return sum(retry_session(session_id) for session_id in ready[:AT_ONCE] if has_owner_in_team(session_id))


def _waiting_here() -> QuerySet[TaskSession, tuple[uuid.UUID, uuid.UUID]]:
    """Return the sessions whose program was missing on this machine, each with its profile."""
    here = ExecutorRunning.objects.filter(runtime=LOCAL, host_id=identity.host_id())
    rows = waiting_for_a_person(TaskSession.objects.all()).filter(
        error_code=Code.PROGRAM_MISSING, agent_execution_id__in=here.values("id")
    )
    # Without an order: to sort by id, SQLite would read all sessions by their ids instead of those with an error.
    return rows.order_by().values_list("id", "agent_profile_id")


def _is_installed(profile: AgentProfile) -> bool:
    try:
        argv, env = profile.argv(LOCAL), profile.env
    except (SecretUnreadable, UnknownPlugin):
        return False
    return bool(argv) and shutil.which(argv[0], path=env.get("PATH")) is not None
