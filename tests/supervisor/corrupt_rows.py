"""Ways in which the rows of a session can be damaged."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from django.db import connection

from executors_app.models import AgentProfile
from sessions_app.models import Prompt, TaskSession
from tests.supervisor.recording_runtime import RecordingRuntime
from tests.supervisor.rows import NO_LEASE, change, execution_of, running_session

FAR_FUTURE: Final = datetime(9999, 12, 31, tzinfo=UTC)


def of_session(**values: Any) -> Callable[[TaskSession], None]:
    def write(session: TaskSession) -> None:
        change(session, **values)

    return write


def of_execution(**values: Any) -> Callable[[TaskSession], None]:
    def write(session: TaskSession) -> None:
        change(execution_of(session), **values)

    return write


def raw(table: str, column: str, value: Any) -> Callable[[TaskSession], None]:
    """Return a function that writes a value past every model field, as only direct database access can."""

    def write(session: TaskSession) -> None:
        key = TaskSession._meta.pk.get_db_prep_value(session.id, connection)
        where = "id" if table == "task_sessions" else "session_id"
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {where} = %s", [value, key])  # noqa: S608

    return write


def of_profile(session: TaskSession) -> None:
    profile = AgentProfile.objects.create(name="Lost", agent_type="no_such_agent")
    change(session, agent_profile=profile)


@dataclass(frozen=True)
class Damage:
    """One way in which rows can be damaged, and the message that names the column."""

    name: str
    do: Callable[[TaskSession], None]
    message: str


DAMAGES: Final = [
    Damage("unknown state", of_session(state="BOGUS"), "state is 'BOGUS'"),
    Damage("unknown wish", of_session(desired_state="perhaps"), "desired_state is 'perhaps'"),
    Damage("unknown work", of_session(work_state="resting"), "work_state is 'resting'"),
    Damage("unknown policy", of_session(policy="never"), "policy is 'never'"),
    Damage("metadata is a list", raw("task_sessions", "metadata", "[1, 2]"), "metadata cannot be read"),
    Damage("metadata is a text", raw("task_sessions", "metadata", '"x"'), "metadata cannot be read"),
    Damage("metadata is null", raw("task_sessions", "metadata", "null"), "metadata cannot be read"),
    Damage("runtime state is a list", raw("executors_running", "state", "[]"), "runtime_state cannot be read"),
    Damage("token of another key", raw("executors_running", "auth_token", "v1:AAAA"), "auth_token cannot be read"),
    Damage("no execution", of_session(agent_execution_id=uuid.uuid4()), "agent_execution_id names no execution"),
    Damage("unknown agent", of_profile, "agent_type is 'no_such_agent'"),
    Damage("negative cursor", of_execution(journal_seq=-5), "journal_seq is -5"),
    Damage("negative generation", of_execution(generation=-1), "generation is -1"),
]
EVERY_DAMAGE: Final = pytest.mark.parametrize("damage", DAMAGES, ids=[damage.name for damage in DAMAGES])


def pair(runtime: RecordingRuntime, damage: Damage) -> tuple[TaskSession, TaskSession]:
    """Return a damaged session and a healthy one; both have a queued prompt and no agent."""
    made = []
    for _ in range(2):
        session = running_session(runtime=runtime.name, execution=NO_LEASE)
        Prompt.objects.create(session=session, message_id="p1", text="do it")
        made.append(session)
    damage.do(made[0])
    return made[0], made[1]
