"""A database with a long history: finished sessions with all their rows, written in bulk.

One finished session is written row by row; the database itself copies it for all others.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import connection, models
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel.rules.states import PromptState, RunState, TaskState
from sessions_app.models import (
    ContinuityReceipt,
    Intent,
    Message,
    Prompt,
    RecoverySweep,
    SessionEvent,
    SweepOutcome,
    Task,
    TaskSession,
    Turn,
)
from tests.bench.world import AT_ONCE, World
from tests.support.fake_agentctl import FakeAgentctl, plan_fleet

EVENTS: Final = 100
"""Events of each finished session."""
TURNS: Final = 4
AGE: Final = timedelta(hours=2)


def add_finished(world: World, fleet: Sequence[FakeAgentctl], finished: int) -> None:
    """Create a live session for each member of ``fleet``, and ``finished`` sessions that have ended."""
    ended = plan_fleet(len(fleet) + finished, "127.9.0.1", 9)[len(fleet) :]
    world.fill([*fleet, *ended])
    keys = [uuid.UUID(one.session_id) for one in ended]
    world.end(keys)
    for some in _parts(keys):
        sessions = TaskSession.objects.filter(id__in=some)
        sessions.update(last_seq=EVENTS, desired_state="stopped", launch_id="")
        Task.objects.filter(sessions__in=sessions).update(state=TaskState.DONE)
        ExecutorRunning.objects.filter(session__in=some).update(owner="", resume_token="")
    _write_one(keys[0])
    _copy(keys[0], keys[1:])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _write_one(key: uuid.UUID) -> None:
    """Write all rows that a finished session leaves."""
    now = timezone.now() - AGE
    SessionEvent.objects.bulk_create(
        SessionEvent(session_id=key, seq=seq, name="session.message.chunk", payload={"text": f"words {seq}"}, at=now)
        for seq in range(1, EVENTS + 1)
    )
    Message.objects.bulk_create(
        Message(session_id=key, seq=seq, updated_seq=seq, role="agent", key=f"m{seq}", created_at=now)
        for seq in range(1, TURNS * 4 + 1)
    )
    for turn in range(TURNS):
        Prompt.objects.create(session_id=key, message_id=f"p{turn}", text="do it", state=PromptState.DONE)
        Turn.objects.create(
            session_id=key, message_id=f"p{turn}", state=RunState.COMPLETED, started_at=now, ended_at=now
        )
    requested_at = now - timedelta(seconds=1)
    Intent.objects.create(session_id=key, kind="start", created_at=requested_at, done_at=now, outcome="fresh")
    Intent.objects.create(session_id=key, kind="stop", created_at=requested_at, done_at=now, outcome="closed")
    ContinuityReceipt.objects.create(session_id=key, kind="fresh")
    sweep = RecoverySweep.objects.create(boot_id="bench", trigger="boot", started_at=now)
    SweepOutcome.objects.create(sweep=sweep, session_id=key, rule="ended")


COPIED: Final[Sequence[type[models.Model]]] = (*(SessionEvent, Message, Prompt, Turn, Intent, ContinuityReceipt),)


def _copy(key: uuid.UUID, others: Sequence[uuid.UUID]) -> None:
    for model in COPIED:
        names, values = zip(*(_copied(model, field) for field in model._meta.local_concrete_fields), strict=True)
        columns = ", ".join(name for name in names if name)
        chosen = ", ".join(value for value in values if value)
        for some in _parts(others):
            places = ", ".join(["%s"] * len(some))
            table = model._meta.db_table
            sql = (
                f"INSERT INTO {table} ({columns}) SELECT {chosen} FROM {table} one"  # noqa: S608 - no values in it
                f" CROSS JOIN task_sessions s WHERE one.session_id = %s AND s.id IN ({places})"
            )
            with connection.cursor() as cursor:
                cursor.execute(sql, [_adapted(key), *map(_adapted, some)])


def _copied(model: type[models.Model], field: Any) -> tuple[str, str]:
    """Return a column and the SQL for its value in a copy."""
    if field.column == "session_id":
        return "session_id", "s.id"
    if field.primary_key:
        new = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
        return (str(field.column), new) if isinstance(field, models.UUIDField) else ("", "")
    column = str(field.column)
    return f'"{column}"', f'one."{column}"'


def _adapted(key: uuid.UUID) -> Any:
    return TaskSession._meta.pk.get_db_prep_value(key, connection)


def _parts(keys: Sequence[uuid.UUID]) -> list[Sequence[uuid.UUID]]:
    return [keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE)]
