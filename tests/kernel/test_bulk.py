"""Bulk statements of the hot path write what the ORM would write, and nothing else."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.kernel.bulk import insert_row, update_row, update_rows
from sessions_app.models import Intent, TaskSession
from tests.kernel.test_orm import columns
from tests.supervisor.rows import execution_of, running_session

pytestmark = pytest.mark.django_db

AT = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
WRITTEN: dict[type[Model], dict[str, Any]] = {
    TaskSession: {
        "error_message": "it’s “gone”\n",
        "metadata": {"a": [1, None, "ü"]},
        "next_restart_at": AT,
        "ready_since": None,
        "start_attempts": 7,
        "stopped_by_user": True,
        "agent_execution_id": None,
    },
    ExecutorRunning: {"resume_token": "secret ü", "auth_token": "", "last_seen_at": AT, "state": {}, "pid": None},
}


def of_model(session: TaskSession, model: type[Model]) -> Any:
    """Return the session's row of a model."""
    return TaskSession.objects.get(id=session.id) if model is TaskSession else execution_of(session)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model, values in WRITTEN.items() for name in values])
def test_written_field_reads_as_if_saved(model: type[Model], name: str) -> None:
    saved, written = running_session(), running_session()
    for session in (saved, written):
        row = of_model(session, model)
        setattr(row, name, WRITTEN[model][name])
        if session is saved:
            row.save(update_fields=[name])
        else:
            update_row(row, [name])
    found = getattr(of_model(written, model), name)
    assert (found, found) == (WRITTEN[model][name], getattr(of_model(saved, model), name))


def test_other_fields_stay_and_updated_at_is_set() -> None:
    session = running_session()
    TaskSession.objects.filter(id=session.id).update(updated_at=AT, start_rank=3)
    row = TaskSession.objects.get(id=session.id)
    TaskSession.objects.filter(id=session.id).update(start_rank=4)
    row.error_code = "changed"
    update_row(row, ["error_code"])
    after = TaskSession.objects.get(id=session.id)
    assert (after.error_code, after.start_rank) == ("changed", 4)
    assert row.updated_at == after.updated_at
    assert timezone.now() - after.updated_at < timedelta(minutes=1)


def test_secret_is_written_encrypted() -> None:
    execution = execution_of(running_session())
    execution.resume_token = "in the clear"
    update_row(execution, ["resume_token"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT resume_token FROM executors_running")
        stored = str(cursor.fetchone()[0])
    assert stored.startswith("v1:")
    assert "clear" not in stored


def test_undecryptable_value_is_written_back_unchanged() -> None:
    session = running_session()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE executors_running SET state = '[1, 2]', resume_token = 'v1:nobody opens this'")
    execution = execution_of(session)
    assert execution.state == {}
    update_row(execution, ["state", "resume_token"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT CAST(state AS text), resume_token FROM executors_running")
        state, resume_token = cursor.fetchone()
    assert (json.loads(state), resume_token) == ([1, 2], "v1:nobody opens this")


def test_inserted_instance_can_be_saved() -> None:
    session = running_session()
    order = Intent(session=session, kind="stop", payload={"why": "asked"})
    insert_row(order)
    assert columns(Intent.objects.get(id=order.id)) == columns(order)
    order.outcome = "stopped"
    order.save(update_fields=["outcome"])
    assert Intent.objects.get(id=order.id).outcome == "stopped"


def test_matched_rows_are_counted() -> None:
    sessions = [running_session() for _ in range(3)]
    rows = [(number, session.id) for number, session in enumerate(sessions)]
    assert update_rows(TaskSession, ("start_attempts",), [*rows, (9, uuid.uuid4())]) == 3
    assert [TaskSession.objects.get(id=session.id).start_attempts for session in sessions] == [0, 1, 2]
    assert update_rows(TaskSession, ("start_attempts",), []) == 0
