"""A task is deleted with its sessions, or keeps all of them."""

from __future__ import annotations

import pytest
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.board.services.deletion import delete_task
from sessions_app.board.services.tasks import create_session
from sessions_app.kernel.services.errors import Conflict
from sessions_app.models import Task, TaskSession
from tests.api.world import World

pytestmark = pytest.mark.django_db


def at_rest(*sessions: TaskSession) -> None:
    for session in sessions:
        session.intents.update(done_at=timezone.now())
        session.executions.update(status=ExecutorRunning.Status.STOPPED)


def another(world: World, **values: object) -> TaskSession:
    session = create_session(world.member, world.task, world.profile, world.executor, **values)  # type: ignore[arg-type]
    at_rest(session)
    return session


def test_task_is_deleted_with_its_sessions(world: World) -> None:
    at_rest(world.session)
    another(world)
    delete_task(world.task)
    assert not Task.objects.filter(id=world.task.id).exists()
    assert not TaskSession.objects.exists()


def test_session_that_shares_a_worktree_is_deleted_before_its_owner(world: World) -> None:
    at_rest(world.session)
    another(world, shares_worktree_of=world.session)
    delete_task(world.task)
    assert not TaskSession.objects.exists()


def test_task_with_a_live_session_keeps_all_of_them(world: World) -> None:
    at_rest(world.session)
    live = another(world)
    live.executions.update(status=ExecutorRunning.Status.READY)
    with pytest.raises(Conflict, match="live execution"):
        delete_task(world.task)
    assert TaskSession.objects.count() == 2


def test_deleting_twice_is_no_error(world: World) -> None:
    at_rest(world.session)
    delete_task(world.task)
    delete_task(world.task)
