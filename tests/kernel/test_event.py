"""The log of a session has no gap and no duplicate number, even with concurrent writers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import IntegrityError, connection, transaction

from sessions_app.kernel.models.event import AppendOnlyError
from sessions_app.models import NewEvent, SessionEvent, TaskSession, append_events, write_numbered_events
from tests.databases import url_of_test_database
from tests.services import ROOT
from tests.supervisor.rows import fresh, make_session
from tests.waiting import PATIENCE

WRITE_SOME = """
import sys, django
django.setup()
from django.db import transaction
from sessions_app.models import NewEvent, append_events
from tests.waiting import PATIENCE
who, session_id = sys.argv[1:]
sys.stdin.readline()
for number in range(20):
    with transaction.atomic():
        append_events(session_id, [NewEvent("tick", {"who": who, "number": number})] * 2)
"""


def numbers(session: TaskSession) -> list[int]:
    return list(session.events.order_by("seq").values_list("seq", flat=True))


def write(session: TaskSession, count: int) -> int:
    with transaction.atomic():
        return append_events(session.id, [NewEvent("tick", {"number": number}) for number in range(count)])


@pytest.mark.django_db
def test_events_are_numbered_from_one_without_a_gap() -> None:
    session = make_session()
    assert write(session, 3) == 3
    assert write(session, 2) == 5
    assert numbers(session) == [1, 2, 3, 4, 5]
    assert fresh(session).last_seq == 5


@pytest.mark.django_db
def test_each_session_has_its_own_numbers() -> None:
    one, two = make_session(), make_session()
    write(one, 2)
    assert write(two, 1) == 1


@pytest.mark.django_db
def test_empty_append_takes_no_number() -> None:
    session = make_session()
    assert write(session, 0) == 0
    assert fresh(session).last_seq == 0


@pytest.mark.django_db
def test_rolled_back_transaction_leaves_no_gap() -> None:
    session = make_session()
    write(session, 1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append_events(session.id, [NewEvent("lost")])
        raise ZeroDivisionError
    write(session, 1)
    assert numbers(session) == [1, 2]


@pytest.mark.django_db
def test_imported_log_keeps_its_numbers() -> None:
    session = make_session()
    assert write_numbered_events(session.id, 5, [NewEvent("five"), NewEvent("six")]) == 6
    assert list(session.events.order_by("seq").values_list("seq", "name")) == [(5, "five"), (6, "six")]


@pytest.mark.django_db
def test_append_to_an_unknown_session_fails() -> None:
    with pytest.raises(TaskSession.DoesNotExist), transaction.atomic():
        append_events(uuid.uuid4(), [NewEvent("tick")])


@pytest.mark.django_db(transaction=True)
def test_append_requires_a_transaction() -> None:
    session = make_session()
    with pytest.raises(transaction.TransactionManagementError):
        append_events(session.id, [NewEvent("tick")])
    assert numbers(session) == []


@pytest.mark.django_db
def test_events_cannot_be_changed() -> None:
    session = make_session()
    write(session, 1)
    event = SessionEvent.objects.get(session=session)
    event.name = "something else"
    with pytest.raises(AppendOnlyError):
        event.save()
    assert SessionEvent.objects.get(session=session).name == "tick"


@pytest.mark.django_db
def test_repeated_once_key_fails_and_rolls_back_its_transaction() -> None:
    session = make_session()
    with transaction.atomic():
        append_events(session.id, [NewEvent("end", once="run:1")])
    with pytest.raises(IntegrityError), transaction.atomic():
        append_events(session.id, [NewEvent("before"), NewEvent("end", once="run:1")])
    assert numbers(session) == [1]
    assert fresh(session).last_seq == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_leave_no_gap_and_repeat_no_number() -> None:
    session, begin = make_session(), Barrier(6)

    def writer(_: int) -> list[int]:
        try:
            begin.wait(PATIENCE)
            return [write(session, 3) for _ in range(10)]
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        ends = [end for some in pool.map(writer, range(6)) for end in some]
    assert sorted(ends) == list(range(3, 181, 3))
    assert numbers(session) == list(range(1, 181))


@pytest.mark.django_db(transaction=True)
def test_concurrent_processes_leave_no_gap_and_keep_batches_together(tmp_path: object) -> None:
    session = make_session()
    env = {
        **os.environ,
        "KANDEV_DATA_DIR": str(tmp_path),
        "KANDEV_DATABASE_URL": url_of_test_database(),
    }
    argv = [sys.executable, "-c", WRITE_SOME]
    writers = [
        subprocess.Popen([*argv, who, str(session.id)], env=env, cwd=ROOT, stdin=subprocess.PIPE) for who in "abc"
    ]
    ended = [writer.communicate(b"go\n", timeout=60) and writer.returncode for writer in writers]
    assert ended == [0, 0, 0]
    assert numbers(session) == list(range(1, 121))
    entries = [(event.payload["who"], event.payload["number"]) for event in session.events.order_by("seq")]
    assert entries[::2] == entries[1::2]
    for who in "abc":
        assert [number for writer, number in entries[::2] if writer == who] == list(range(20))
