"""A prepared query returns what its queryset returns, for any key, and is compiled once."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Model
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.orm import IDS_PLACEHOLDER, MOMENT_PLACEHOLDER, PreparedQuery
from sessions_app.models import Intent, TaskSession
from tests.supervisor.rows import execution_of, running_session

pytestmark = pytest.mark.django_db


def columns(row: Model) -> dict[str, Any]:
    """Return every field value of a row."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_row_equals_the_row_of_the_queryset() -> None:
    sessions = [running_session(), running_session(stopped_by_user=True, metadata={"a": [1]})]
    rows = PreparedQuery(lambda key: ExecutorRunning.objects.filter(session_id=key))
    for session in sessions:
        (row,) = rows.all(session.id)
        assert (row, columns(row)) == (execution_of(session), columns(execution_of(session)))
        assert row.auth_token == execution_of(session).auth_token
    found = PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(sessions[1].id)
    assert found is not None
    assert columns(found) == columns(TaskSession.objects.get(id=sessions[1].id))


def test_row_can_be_saved_and_follows_relations() -> None:
    session = running_session()
    row = PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(session.id)
    assert row is not None
    row.error_message = "changed"
    row.save(update_fields=["error_message"])
    assert TaskSession.objects.get(id=session.id).error_message == "changed"
    assert row.task.team == session.task.team


def test_unknown_key_finds_nothing() -> None:
    running_session()
    assert PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(uuid.uuid4()) is None


def test_constants_of_the_query_stay_and_keys_may_be_text() -> None:
    session = running_session()
    Intent.objects.all().delete()
    kept = [Intent.objects.create(session=session, kind=kind) for kind in ("start", "stop")]
    starts = PreparedQuery(lambda key: Intent.objects.filter(session_id=key, kind="start", done_at=None))
    assert starts.all(session.id) == kept[:1]
    by_kind = PreparedQuery(lambda key: Intent.objects.filter(kind=key), "placeholder")
    assert [by_kind.first(kind) for kind in ("start", "stop")] == kept
    kinds = PreparedQuery(lambda key: Intent.objects.filter(session_id=key).order_by("kind").values_list("kind"))
    assert kinds.values(session.id) == [["start"], ["stop"]]


def test_query_without_a_key() -> None:
    sessions = {running_session().id for _ in range(2)}
    rows = PreparedQuery(lambda _: TaskSession.objects.filter(has_agent=True).order_by().values_list("id"))
    assert {key for (key,) in rows.values()} == sessions


def test_query_is_compiled_once() -> None:
    session, made = running_session(), []

    def query(key: Any) -> Any:
        made.append(key)
        return TaskSession.objects.filter(id=key)

    prepared = PreparedQuery(query)
    for _ in range(3):
        assert prepared.first(session.id) == session
    assert len(made) == 1


def test_list_of_ids_is_one_key_of_any_length() -> None:
    sessions = [running_session().id for _ in range(3)]
    rows = PreparedQuery(
        lambda keys: TaskSession.objects.filter(id__among=keys).order_by("id").values_list("id"), IDS_PLACEHOLDER
    )
    for keys in ([], sessions[:1], sessions, [uuid.uuid4(), sessions[2], sessions[0]]):
        found = sorted(set(keys) & set(sessions))
        assert [key for (key,) in rows.values(keys)] == found
        assert sorted(TaskSession.objects.filter(id__among=keys).values_list("id", flat=True)) == found
        assert sorted(Intent.objects.filter(session__among=keys).values_list("session", flat=True)) == sorted(
            Intent.objects.filter(session__in=keys).values_list("session", flat=True)
        )


def test_moment_is_a_key() -> None:
    session, now = running_session(), timezone.now()
    TaskSession.objects.update(created_at=now)
    later = PreparedQuery(lambda key: TaskSession.objects.filter(created_at__gt=key), MOMENT_PLACEHOLDER)
    assert later.all(now - timedelta(seconds=1)) == [session]
    assert later.all(now) == []
