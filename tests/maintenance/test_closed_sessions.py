"""Sessions of done, cancelled and archived tasks count as closed, until the task is reopened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.transaction import atomic
from django.utils import timezone

from sessions_app.board.services import tasks
from sessions_app.maintenance.closed_sessions import closed_before, lock_if_closed
from sessions_app.models import Task, TaskSession
from sessions_app.workflows.models import WorkflowRun
from tests.maintenance.chores import LONG_AGO, ended_session
from tests.supervisor.rows import change, execution_of, make_user

pytestmark = pytest.mark.django_db
CUTOFF = timezone.now() - timedelta(days=30)


def is_closed(session: TaskSession) -> bool:
    with atomic():
        locked = lock_if_closed(session.id, CUTOFF)
    assert TaskSession.objects.filter(closed_before(CUTOFF), id=session.id).exists() is locked
    return locked


def of_task(session: TaskSession, **values: Any) -> None:
    Task.objects.filter(id=session.task_id).update(**values)


ENDS: dict[str, dict[str, Any]] = {
    "done": {"state": "DONE", "entered_state": "DONE", "entered_at": LONG_AGO},
    "cancelled": {"state": "CANCELLED", "entered_state": "CANCELLED", "entered_at": LONG_AGO},
    "archived": {"archived_at": LONG_AGO},
    "done before times were recorded": {"state": "DONE", "entered_state": "", "entered_at": None},
}


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_session_of_an_ended_task_is_closed(end: dict[str, Any]) -> None:
    session = ended_session()
    of_task(session, **end, updated_at=LONG_AGO)
    assert is_closed(session)


def test_session_of_an_open_task_is_not_closed() -> None:
    session = ended_session()
    of_task(session, updated_at=LONG_AGO)
    assert not is_closed(session)


def recently_done(session: TaskSession) -> None:
    of_task(session, entered_at=timezone.now())


def changed_recently(session: TaskSession) -> None:
    change(session, updated_at=timezone.now())


def running(session: TaskSession) -> None:
    change(execution_of(session), status="ready")


def about_to_start(session: TaskSession) -> None:
    session.intents.update(done_at=None)


def in_a_workflow(session: TaskSession) -> None:
    used = {"task": session.task, "team": session.task.team, "executor": session.executor, "workspace": session}
    WorkflowRun.objects.create(name="nightly", text="", **used)


def reopened(session: TaskSession) -> None:
    tasks.reopen_task(session.task, make_user())


@pytest.mark.parametrize(
    "but",
    [recently_done, changed_recently, running, about_to_start, in_a_workflow, reopened],
    ids=lambda but: but.__name__,
)
def test_session_of_an_ended_task_stays_while_it_may_be_needed(but: Callable[[TaskSession], None]) -> None:
    session = ended_session()
    of_task(session, **ENDS["done"])
    but(session)
    assert not is_closed(session)


def test_unarchived_task_keeps_its_sessions() -> None:
    session = ended_session()
    of_task(session, **ENDS["archived"])
    tasks.unarchive_task(session.task, make_user())
    assert not is_closed(session)


def test_deleted_session_is_not_closed() -> None:
    session = ended_session()
    key = session.id
    session.delete()
    with atomic():
        assert not lock_if_closed(key, CUTOFF)
