"""Many tasks are marked as done or archived at once: what they leave is said first, and one failure stops no other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from sessions_app.board.services import bulk
from sessions_app.board.services.tasks import finish_task
from sessions_app.finish import unfinished
from sessions_app.finish.services import Uncommitted
from sessions_app.models import Task, TaskSession
from tests.pages.world import World

pytestmark = pytest.mark.django_db


def act(browser: Client, action: str, *tasks: Any, **form: str) -> Any:
    return browser.post("/tasks/bulk/?q=x", {"action": action, "task": [str(task.id) for task in tasks], **form})


def ask_api(browser: Client, action: str, *tasks: Any, **more: Any) -> list[dict[str, Any]]:
    body = {"action": action, "tasks": [str(task.id) for task in tasks], **more}
    answer = browser.post("/api/v1/tasks/bulk/", body, content_type="application/json")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def states(*tasks: Task) -> list[str]:
    rows = {task.id: task for task in Task.objects.all()}
    return ["archived" if rows[task.id].archived_at else str(rows[task.id].state) for task in tasks]


@pytest.fixture
def unmerged(world: World, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task with a branch of which it is not known whether it is merged, and one uncommitted file."""
    monkeypatch.setattr(unfinished, "read_uncommitted", lambda session: Uncommitted(("src/a.py",), "f" * 40))
    session = world.session()
    TaskSession.objects.filter(id=session.id).update(worktree_branch="kandev/one")
    return session.task


@pytest.mark.parametrize(("action", "state"), [("done", "DONE"), ("archive", "archived")])
def test_tasks_that_leave_nothing_are_changed_at_once(action: str, state: str, world: World, ada: Client) -> None:
    tasks = [world.task(title) for title in ("One", "Two")]
    answer = act(ada, action, *tasks)
    assert (answer.status_code, answer["Location"]) == (302, "/?q=x")
    assert states(*tasks) == [state, state]
    assert "2 tasks were" in ada.get("/").text


def test_what_is_left_is_shown_before_anything_is_changed(world: World, ada: Client, unmerged: Task) -> None:
    task = world.task("Nothing to merge")
    html = act(ada, "done", unmerged, task).text
    assert "it is not known whether all commits are merged; 1 file with uncommitted changes" in html
    assert "src/a.py" in html
    assert html.count('name="task"') == 2
    assert states(unmerged, task) == ["TODO", "TODO"]
    assert act(ada, "done", unmerged, task, confirmed="1").status_code == 302
    assert states(unmerged, task) == ["DONE", "DONE"]


def test_task_that_cannot_be_changed_keeps_no_other(world: World, ada: Client, bob: Client) -> None:
    cancelled, good = world.task("Cancelled"), world.task("Good")
    Task.objects.filter(id=cancelled.id).update(state="CANCELLED")
    html = act(ada, "done", cancelled, good).text
    assert "1 task was marked as done. 1 was not." in html
    assert "This task is cancelled. Reopen it first." in html
    assert states(cancelled, good) == ["CANCELLED", "DONE"]
    assert "Task not found" in act(bob, "archive", good).text
    assert states(good) == ["DONE"]


def test_api_keeps_unfinished_tasks_unless_it_is_confirmed(world: World, ada: Client, unmerged: Task) -> None:
    task = world.task("Nothing to merge")
    first, second = ask_api(ada, "archive", unmerged, task)
    assert (first["ok"], first["code"], second["ok"]) == (False, "unfinished_work", True)
    assert first["unfinished"]["sessions"][0]["uncommitted"] == ["src/a.py"]
    assert states(unmerged, task) == ["TODO", "archived"]
    assert ask_api(ada, "archive", unmerged, confirmed=True)[0]["ok"]
    assert states(unmerged) == ["archived"]


def test_work_that_nobody_had_time_to_look_at_is_unknown(
    world: World, ada: Client, unmerged: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_SECONDS", -1.0)
    (outcome,) = ask_api(ada, "done", unmerged)
    assert (outcome["code"], outcome["unfinished"]["unread_sessions"]) == ("unfinished_work", 1)
    assert "1 session was not looked at, so it is not known what it has." in act(ada, "done", unmerged).text


@pytest.mark.parametrize(("action", "count"), [("done", 0), ("done", 3), ("delete", 1)])
def test_unknown_action_and_too_many_tasks_change_nothing(
    action: str, count: int, world: World, ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_TASKS", 2)
    tasks = [world.task() for _ in range(count)]
    answer = act(ada, action, *tasks)
    assert answer.status_code == 422
    assert "Nothing was changed." in answer.text
    assert states(*tasks) == ["TODO"] * count


def test_one_broken_task_stops_no_other(world: World, ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = world.task("Broken"), world.task("Good")

    def finish(task: Task, user: Any) -> Task:
        if task.id == broken.id:
            raise RuntimeError("a bug")
        return finish_task(task, user)

    monkeypatch.setattr(bulk, "ACTIONS", {"done": finish})
    html = act(ada, "done", broken, good).text
    assert "Something went wrong for this task." in html
    assert states(broken, good) == ["TODO", "DONE"]


def test_cards_have_a_box_only_where_the_user_may_write(world: World, ada: Client, bob: Client) -> None:
    task = world.task()
    assert f'name="task" value="{task.id}"' in ada.get("/").text
    assert 'form="bulk-tasks"' not in bob.get("/").text
