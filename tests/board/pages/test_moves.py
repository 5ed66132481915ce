"""Moving a task to another column of the board: guarded by where it was shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from sessions_app.board.services import board
from sessions_app.board.views import moves as views
from sessions_app.finish.services import Uncommitted
from sessions_app.finish.unfinished import UnfinishedTask, UnfinishedWork
from sessions_app.models import Task, TaskSession
from tests.pages.world import World

SCRIPT = {"Accept": "application/json"}


def move(client: Client, task: Task, shown: str, to: str, **values: str) -> tuple[int, dict[str, Any]]:
    answer: Any = client.post(f"/tasks/{task.id}/move/", {"shown": shown, "to": to, **values}, headers=SCRIPT)
    return answer.status_code, answer.json()


def state_of(task: Task) -> str:
    return Task.objects.get(id=task.id).state


def without_sessions(world: World) -> Task:
    return world.task("Mend it", description="Please mend it.")


def in_review(world: World) -> Task:
    return world.resting_session().task


def done(world: World) -> Task:
    task = in_review(world)
    Task.objects.filter(id=task.id).update(state="DONE")
    return task


def archived(world: World) -> Task:
    task = without_sessions(world)
    Task.objects.filter(id=task.id).update(archived_at="2026-03-01T12:00:00Z")
    return task


def without_repository(world: World) -> Task:
    return Task.objects.create(title="Mend it", team=world.team)


MOVES: dict[str, tuple[Callable[[World], Task], str, str, str, str]] = {
    "done": (in_review, "REVIEW", "DONE", "DONE", "is done."),
    "cancelled": (without_sessions, "TODO", "CANCELLED", "CANCELLED", "is cancelled."),
    "reopened": (done, "DONE", "REVIEW", "REVIEW", "is reopened and in “Review”."),
    "started": (without_sessions, "TODO", "IN_PROGRESS", "TODO", "An agent is starting on “Mend it”."),
}
REFUSED: dict[str, tuple[Callable[[World], Task], str, str, str]] = {
    "moved meanwhile": (done, "REVIEW", "CANCELLED", "This task is in “Done” by now. Nothing was changed."),
    "what only its sessions decide": (in_review, "REVIEW", "IN_PROGRESS", "Send a prompt to one of its sessions."),
    "to where it is": (in_review, "REVIEW", "REVIEW", "This task is already in “Review”."),
    "done, to be cancelled": (done, "DONE", "CANCELLED", "This task is done. Reopen it first."),
    "reopened to elsewhere": (done, "DONE", "TODO", "Reopened, this task is in “Review”"),
    "archived": (archived, "TODO", "DONE", "This task is archived."),
    "nowhere to work": (without_repository, "TODO", "IN_PROGRESS", "while an agent works on it."),
    "no such column": (in_review, "REVIEW", "ELSEWHERE", "to must be the state of a task."),
    "no word of where it was": (in_review, "", "DONE", "shown must be the state of a task."),
}


@pytest.mark.parametrize("name", MOVES)
def test_possible_move_is_carried_out(name: str, ada: Client, world: World) -> None:
    make, shown, to, after, sentence = MOVES[name]
    task = make(world)
    status, answer = move(ada, task, shown, to)
    assert (status, state_of(task)) == (200, after)
    assert sentence in answer["message"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_move_says_why_and_changes_nothing(name: str, ada: Client, world: World) -> None:
    make, shown, to, why = REFUSED[name]
    task = make(world)
    before, wanted = state_of(task), set(TaskSession.objects.values_list("id", "desired_state"))
    status, answer = move(ada, task, shown, to)
    assert (status, state_of(task)) == (409, before)
    assert why in answer["message"]
    assert set(TaskSession.objects.values_list("id", "desired_state")) == wanted


def test_second_start_of_the_same_card_starts_nothing(ada: Client, world: World) -> None:
    task = without_sessions(world)
    answers = [move(ada, task, "TODO", "IN_PROGRESS") for _ in range(2)]
    assert [status for status, _ in answers] == [200, 409]
    assert task.sessions.get().prompts.get().text == "Please mend it."


def test_unfinished_work_is_shown_before_a_task_is_done(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = in_review(world)
    works = [UnfinishedWork(task.sessions.get(), "fix-<b>", "main", 2, "", Uncommitted())]
    monkeypatch.setattr(views, "unfinished_work", lambda _: UnfinishedTask(works, 0, 1))
    status, answer = move(ada, task, "REVIEW", "DONE")
    assert (status, answer["code"], state_of(task)) == (409, "unfinished_work", "REVIEW")
    assert "fix-&lt;b&gt;" in answer["html"]
    assert "2 commits are not in" in answer["html"]
    page: Any = ada.post(f"/tasks/{task.id}/move/", {"shown": "REVIEW", "to": "DONE"})
    assert "Mark as done anyway" in page.text
    works.append(works[0])
    assert move(ada, task, "REVIEW", "DONE", confirmed=answer["version"])[0] == 409, "there is more by now"
    del works[1]
    assert move(ada, task, "REVIEW", "DONE", confirmed=answer["version"])[0] == 200
    assert state_of(task) == "DONE"


def test_card_of_a_task_with_many_sessions_names_the_column_that_all_of_them_decide(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "SESSIONS_PER_TASK", 1)
    task = done(world)
    TaskSession.objects.create(task=task, agent_profile=world.profile, executor=world.executor, state="FAILED")
    assert 'data-moves="REVIEW:reopen"' in ada.get("/live/").json()["parts"]["board"]
    assert move(ada, task, "DONE", "REVIEW")[0] == 200


def test_move_of_a_task_that_is_deleted_meanwhile_says_so(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = without_sessions(world)

    def delete_first(_: Task) -> UnfinishedTask:
        Task.objects.all().delete()
        return UnfinishedTask([], 0, 0)

    monkeypatch.setattr(views, "unfinished_work", delete_first)
    status, answer = move(ada, task, "TODO", "DONE")
    assert (status, answer["code"]) == (409, "not_found")


def test_form_without_a_script_leads_back_to_the_board(ada: Client, world: World) -> None:
    task = in_review(world)
    for shown, sentence in (("TODO", "by now. Nothing was changed."), ("REVIEW", "is cancelled.")):
        answer: Any = ada.post(f"/tasks/{task.id}/move/", {"shown": shown, "to": "CANCELLED"}, follow=True)
        assert answer.redirect_chain == [("/", 302)]
        assert sentence in answer.text


def test_cards_name_the_moves_that_the_server_allows(ada: Client, bob: Client, world: World) -> None:
    for make in (without_sessions, in_review, done, without_repository, archived):
        make(world)
    page = ada.get("/live/").json()["parts"]["board"]
    assert re.findall(r'data-moves="([^"]+)"', page) == [
        "DONE:done CANCELLED:cancel",
        "IN_PROGRESS:start DONE:done CANCELLED:cancel",
        "DONE:done CANCELLED:cancel",
        "REVIEW:reopen",
    ]
    assert "data-moves" not in ada.get("/live/?archived=1").text
    assert "data-moves" not in bob.get("/live/").text
