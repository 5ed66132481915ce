"""A task is deleted with its sessions, or keeps all of them."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from django.db import connection
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.board.services import deletion
from sessions_app.board.services.deletion import delete_task
from sessions_app.board.services.tasks import create_session, delete_session, finish_task
from sessions_app.finish import unfinished
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.services import Uncommitted
from sessions_app.finish.unfinished import TimeLimit, unfinished_work
from sessions_app.kernel.services.errors import Conflict, NotFound, WorkUnfinished
from sessions_app.models import Intent, Task, TaskSession, session_transaction
from tests.api.world import World
from tests.finish.repositories import Mergeable, mergeable
from tests.raw_events import record_raw_event
from tests.supervisor.rows import change, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


def at_rest(*sessions: TaskSession) -> None:
    for session in sessions:
        session.intents.update(done_at=timezone.now())
        session.executions.update(status=ExecutorRunning.Status.STOPPED)


def another(world: World, **values: object) -> TaskSession:
    session = create_session(world.member, world.task, world.profile, world.executor, **values)  # type: ignore[arg-type]
    at_rest(session)
    return session


def delete(world: World, confirmed: str = "") -> None:
    delete_task(world.task, world.member, confirmed)


@pytest.fixture
def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mergeable:
    """A session with a branch of two commits that are not merged, and one uncommitted file."""
    made = mergeable(tmp_path / "team")
    at_rest(made.session)
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: Uncommitted(("a.py",), "f" * 40))
    return made


def test_task_is_deleted_with_its_sessions(world: World) -> None:
    at_rest(world.session)
    another(world)
    delete(world)
    assert not Task.objects.filter(id=world.task.id).exists()
    assert not TaskSession.objects.exists()


def test_session_that_shares_a_worktree_is_deleted_before_its_owner(world: World) -> None:
    at_rest(world.session)
    another(world, shares_worktree_of=world.session)
    delete(world)
    assert not TaskSession.objects.exists()


def test_task_with_a_live_session_keeps_all_of_them(world: World) -> None:
    at_rest(world.session)
    live = another(world)
    live.executions.update(status=ExecutorRunning.Status.READY)
    with pytest.raises(Conflict, match="live execution"):
        delete(world)
    assert TaskSession.objects.count() == 2


def test_deleting_twice_is_no_error(world: World) -> None:
    at_rest(world.session)
    delete(world)
    delete(world)
    assert not Task.objects.exists()


def test_work_that_is_nowhere_else_is_deleted_only_as_it_was_confirmed(
    merged: Mergeable, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, user = merged.session.task, make_user()
    with pytest.raises(WorkUnfinished):
        delete_task(task, user)
    seen = unfinished_work(task).version
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: Uncommitted(("a.py", "b.py"), "f" * 40))
    with pytest.raises(WorkUnfinished) as caught:
        delete_task(task, user, seen)
    assert Task.objects.get(id=task.id).archived_at is None
    delete_task(task, user, caught.value.details["version"])
    assert not Task.objects.filter(id=task.id).exists()


def test_task_is_not_deleted_while_its_branch_is_merged(merged: Mergeable) -> None:
    merged.request()
    task = merged.session.task
    with pytest.raises(Conflict, match="merge or push"):
        delete_task(task, make_user(), unfinished_work(task).version)
    assert FinishIntent.objects.exists()


def test_session_that_starts_meanwhile_keeps_the_task_on_the_board(
    merged: Mergeable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(session: TaskSession) -> Uncommitted:
        Intent.objects.create(session=session, kind="start")
        return Uncommitted(("a.py",), "f" * 40)

    task = merged.session.task
    seen = unfinished_work(task).version
    monkeypatch.setattr(unfinished, "read_uncommitted", start)
    with pytest.raises(Conflict, match="live execution"):
        delete_task(task, make_user(), seen)
    assert Task.objects.get(id=task.id).archived_at is None
    assert TaskSession.objects.exists()


def test_one_request_deletes_a_limited_number_of_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MAX_SESSIONS", 2)
    at_rest(world.session)
    another(world)
    another(world)
    with pytest.raises(Conflict, match="2 sessions of this task were deleted, 1 more is left"):
        delete(world)
    delete(world)
    assert not Task.objects.filter(id=world.task.id).exists()


def test_long_conversation_is_deleted_in_several_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MAX_ROWS", 3)
    at_rest(world.session)
    with session_transaction(world.session.id) as transaction:
        for number in range(8):
            record_raw_event(transaction, "session.of_another_version", number=number)
    left: list[int] = []

    def delete_rest(session: TaskSession) -> None:
        left.append(session.events.count())
        delete_session(session)

    monkeypatch.setattr(deletion, "delete_session", delete_rest)
    delete(world)
    assert 0 < left[0] <= 3
    assert not TaskSession.objects.exists()


def test_change_of_a_task_that_was_deleted_meanwhile_finds_nothing(world: World) -> None:
    at_rest(world.session)
    delete(world)
    with pytest.raises(NotFound):
        finish_task(world.task, world.member)


def test_sessions_that_were_not_looked_at_are_unknown(merged: Mergeable) -> None:
    task = merged.session.task
    older = [make_session(task=task) for _ in range(2)]
    for session in older:
        change(session, worktree_branch=f"kandev/{session.id}")
    assert len(unfinished_work(task).works) == 3
    hasty = unfinished_work(task, TimeLimit(seconds=-1, sure_sessions=1))
    assert (len(hasty.works), hasty.unread, hasty.is_something) == (1, 2, True)


@pytest.mark.parametrize("seconds", [10.0, -1.0], ids=["in time", "too slow"])
def test_confirmation_holds_for_what_was_shown_however_long_it_takes(
    merged: Mergeable, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    task, user = merged.session.task, make_user()
    for _ in range(2):
        change(make_session(task=task), worktree_branch="kandev/other")
    at_rest(*task.sessions.all())
    shown = unfinished_work(task, TimeLimit(seconds, sure_sessions=1))
    monkeypatch.setattr(unfinished, "SURE_SESSIONS", 0)
    monkeypatch.setattr(unfinished, "SECONDS", -1.0 if seconds > 0 else 10.0)
    delete_task(task, user, shown.version)
    assert not Task.objects.filter(id=task.id).exists()


@pytest.mark.parametrize("confirmed", ["3", "-", "999-x", "\u0661-x", "1" * 64, f"{'0' * 32}"])
def test_confirmation_of_any_other_text_is_refused(merged: Mergeable, confirmed: str) -> None:
    with pytest.raises(WorkUnfinished):
        delete_task(merged.session.task, make_user(), confirmed)
    assert Task.objects.filter(id=merged.session.task_id).exists()


@pytest.mark.django_db(transaction=True)
def test_deletion_that_fails_leaves_nothing_archived_for_another_one_to_rely_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_rest(world.session)
    seen_by_others: list[object] = []

    def read_from_outside() -> None:
        try:
            seen_by_others.append(Task.objects.get(id=world.task.id).archived_at)
        finally:
            connection.close()

    def fail(task: Task) -> None:
        other = Thread(target=read_from_outside)
        other.start()
        other.join()
        if len(seen_by_others) == 2:  # the look after the task was archived
            raise Conflict("A session of this task has a live execution.")

    monkeypatch.setattr(deletion, "_require_deletable", fail)
    with pytest.raises(Conflict):
        delete(world)
    assert seen_by_others == [None, None]
    assert Task.objects.get(id=world.task.id).archived_at is None
