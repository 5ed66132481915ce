"""Reading many logs at once: lines match the API and keep their order, and no log delays the others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sessions_app.board.services.tasks import create_session
from sessions_app.models import NewEvent, TaskSession, append_events
from sessions_app.stream.live import hub
from sessions_app.stream.live.hub import SessionLog, load_changes, load_lines_after
from sessions_app.timeline.services import event_json
from tests.api.world import World
from tests.stream.live.sockets import append as say


def write(session: TaskSession, *events: NewEvent) -> None:
    with transaction.atomic():
        append_events(session.id, events)


def another(world: World) -> TaskSession:
    return create_session(world.member, world.task, world.profile, world.executor)


PAYLOADS: list[Any] = [
    {},
    {"text": 'quote " backslash \\ line \n end'},
    {"text": "grüße 🦭 \u2028 \u007f \x01"},
    {"nested": [{"deep": [1, 2.5, None, True, 1e300, -(2**53)]}]},
]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "at", [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)]
)
def test_line_equals_the_event_object_of_the_api(world: World, payload: Any, at: datetime) -> None:
    write(world.session, NewEvent("session.workspace.changed", payload, at))
    ((line,), more) = load_lines_after({SessionLog.of(world.session): 0})
    assert json.loads(line.text) == event_json(world.session.events.get(), world.session)
    assert line.size == len(line.text.encode())
    assert not more


def test_one_statement_reads_every_log_after_its_own_cursor(world: World) -> None:
    logs = [world.session, *(another(world) for _ in range(20))]
    for number, session in enumerate(logs):
        say(session.id, number + 1)
    cursors = {SessionLog.of(session): number - 1 for number, session in enumerate(logs)}
    with CaptureQueriesContext(connection) as queries:
        found, _ = load_lines_after(cursors)
    assert len(queries) == 1
    assert [(line.log, line.seq) for line in found] == [
        (log, seq) for log, after in cursors.items() for seq in range(max(after, 0) + 1, after + 3)
    ]


@pytest.mark.embedded
def test_log_query_uses_the_index(world: World) -> None:
    say(world.session.id, 3)
    sql, values = hub._statement({SessionLog.of(world.session): 0})
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {sql}", values)
        plan = " / ".join(row[3] for row in cursor.fetchall())
    assert "SEARCH e USING INDEX" in plan
    assert "SCAN e" not in plan


def test_long_log_leaves_room_for_other_logs(world: World) -> None:
    second = another(world)
    say(world.session.id, hub.LOG_BATCH_LINES + 50)
    say(second.id, 1)
    found, more = load_lines_after({SessionLog.of(world.session): 0, SessionLog.of(second): 0})
    assert [line.seq for line in found] == [*range(1, hub.LOG_BATCH_LINES + 1), 1]
    assert more


def test_batch_ends_at_its_size_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "BATCH_BYTES", 2500)
    say(world.session.id, 10, size=1000)
    found, more = load_lines_after({SessionLog.of(world.session): 4})
    assert ([line.seq for line in found], more) == ([5, 6], True)


@pytest.mark.embedded
def test_reading_leaves_no_transaction_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished statement would keep its read transaction open, and the write-ahead log would grow."""
    monkeypatch.setattr(hub, "BATCH_BYTES", 1)
    say(world.session.id, 500)
    load_lines_after({SessionLog.of(world.session): 0})
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        busy, *_ = cursor.fetchone()
    assert busy == 0


def test_log_is_not_read_again_without_a_write(world: World) -> None:
    cursors = {SessionLog.of(world.session): 0}
    first = load_changes(None, cursors, [])
    with CaptureQueriesContext(connection) as queries:
        assert load_changes(first.version, cursors, []).lines == []
    assert len(queries) == 1


def test_new_sessions_of_a_task_are_found(world: World) -> None:
    born = another(world)
    say(born.id, 2)
    found = load_changes(None, {SessionLog.of(world.session): 0}, [world.task.id])
    assert found.new_logs == [SessionLog.of(born)]
    assert [(line.log, line.seq) for line in found.lines] == [(SessionLog.of(born), 1), (SessionLog.of(born), 2)]
