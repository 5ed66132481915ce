"""A prepared query gives what the query itself gives, whatever the key, and is made out once."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import Model
from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.prepared_query import PreparedQuery
from sessions_app.models import Intent, TaskSession
from tests.supervisor.rows import execution_of, running_session

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def columns(row: Model) -> dict[str, Any]:
    """Every value of a row."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_a_row_is_as_the_query_itself_gives_it() -> None:
    sessions = [running_session(), running_session(stopped_by_user=True, metadata={"a": [1]})]
    rows = PreparedQuery(lambda key: ExecutorRunning.objects.filter(session_id=key))
    for session in sessions:
        (row,) = rows.all(session.id)
        assert (row, columns(row)) == (execution_of(session), columns(execution_of(session)))
        assert row.auth_token == execution_of(session).auth_token
    found = PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(sessions[1].id)
    assert found is not None
    assert columns(found) == columns(TaskSession.objects.get(id=sessions[1].id))


def test_such_a_row_can_be_saved_and_asked_for_what_it_refers_to() -> None:
    session = running_session()
    row = PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(session.id)
    assert row is not None
    row.error_message = "changed"
    row.save(update_fields=["error_message"])
    assert TaskSession.objects.get(id=session.id).error_message == "changed"
    assert row.task.team == session.task.team


def test_a_key_that_nothing_has_finds_nothing() -> None:
    running_session()
    assert PreparedQuery(lambda key: TaskSession.objects.filter(id=key)).first(uuid.uuid4()) is None


def test_other_values_of_the_query_stay_and_the_key_may_be_a_text() -> None:
    session = running_session()
    Intent.objects.all().delete()
    kept = [Intent.objects.create(session=session, kind=kind) for kind in ("start", "stop")]
    starts = PreparedQuery(lambda key: Intent.objects.filter(session_id=key, kind="start", done_at=None))
    assert starts.all(session.id) == kept[:1]
    by_kind = PreparedQuery(lambda key: Intent.objects.filter(kind=key), "some kind")
    assert [by_kind.first(kind) for kind in ("start", "stop")] == kept
    kinds = PreparedQuery(lambda key: Intent.objects.filter(session_id=key).order_by("kind").values_list("kind"))
    assert kinds.texts(session.id) == ["start", "stop"]


def test_what_a_row_refers_to_comes_with_it(django_assert_num_queries: Any) -> None:
    session, without = running_session(), running_session()
    without.task.repository = None
    without.task.save()
    beside = ("task__repository", "agent_profile", "executor")
    query = TaskSession.objects.select_related(*beside)
    rows = PreparedQuery(lambda key: query.filter(id=key))
    for one in (session, without):
        with django_assert_num_queries(1):
            found = rows.first(one.id)
            assert found is not None
            met = [found, found.task, found.task.repository, found.agent_profile, found.executor]
        expected = query.get(id=one.id)
        read = [expected, expected.task, expected.task.repository, expected.agent_profile, expected.executor]
        assert [row and columns(row) for row in met] == [row and columns(row) for row in read]
    assert without.task.repository is None


def test_a_key_may_be_a_moment() -> None:
    session, now = running_session(), timezone.now()
    orders = [Intent.objects.create(session=session, kind="stop", created_at=now + DAY * days) for days in range(4)]
    between = PreparedQuery(
        lambda after, before: Intent.objects.filter(kind="stop", created_at__gt=after, created_at__lte=before),
        datetime(2001, 1, 1, tzinfo=UTC),
        datetime(2002, 1, 1, tzinfo=UTC),
    )
    assert between.all(now, now + 2 * DAY) == orders[1:3]
    assert between.all(now + 2 * DAY, now + 9 * DAY) == orders[3:]


def test_a_query_without_a_key_is_asked_without_one() -> None:
    sessions = {running_session().id for _ in range(2)}
    rows = PreparedQuery(lambda _: TaskSession.objects.filter(has_agent=True).order_by().values_list("id"))
    assert {key for (key,) in rows.values()} == sessions


def test_it_is_made_out_once() -> None:
    session, made = running_session(), []

    def query(key: Any) -> Any:
        made.append(key)
        return TaskSession.objects.filter(id=key)

    prepared = PreparedQuery(query)
    for _ in range(3):
        assert prepared.first(session.id) == session
    assert len(made) == 1
