"""The title and the text of a task are edited on its page, without scripts too; no text of an editor is lost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.board.services.tasks import change_task, text_version
from sessions_app.models import Repository, Task
from tests.pages.world import World
from tests.supervisor.rows import make_session

pytestmark = pytest.mark.any_database


def save(browser: Client, task: Task, **values: Any) -> Any:
    shown = {"title": task.title, "description": task.description, "version": text_version(task)}
    return browser.post(f"/tasks/{task.id}/edit/", {**shown, **values})


def test_page_of_a_task_leads_to_its_texts(world: World, ada: Client) -> None:
    task = world.task(description="Look at\nthe log.")
    assert f'href="/tasks/{task.id}/edit/"' in ada.get(f"/tasks/{task.id}/").text
    html = ada.get(f"/tasks/{task.id}/edit/").text
    assert 'value="Fix the tests"' in html
    assert "\nLook at\nthe log.</textarea>" in html


def test_texts_of_a_task_are_saved(world: World, ada: Client) -> None:
    task = world.task()
    answer = save(ada, task, title=" Fix all tests ", description="One\r\ntwo ")
    assert (answer.status_code, answer["Location"]) == (302, f"/tasks/{task.id}/")
    task.refresh_from_db()
    assert (task.title, task.description) == ("Fix all tests", "One\ntwo ")


def test_texts_that_somebody_else_has_changed_are_not_replaced_unseen(world: World, ada: Client) -> None:
    task = world.task(description="old")
    change_task(task, {"title": "Theirs", "description": "their text"})
    answer = save(ada, task, title="Mine", description="my text")
    assert answer.status_code == 409
    for text in ("Theirs", "their text", 'value="Mine"', "my text</textarea>"):
        assert text in answer.text
    task.refresh_from_db()
    assert task.title == "Theirs"
    (version,) = re.findall(r'name="version" value="([^"]*)"', answer.text)
    assert save(ada, task, title="Mine", description="my text", version=version).status_code == 302
    task.refresh_from_db()
    assert (task.title, task.description) == ("Mine", "my text")


def test_same_texts_saved_twice_are_no_conflict(world: World, ada: Client) -> None:
    task = world.task()
    assert [save(ada, task, title="Once").status_code for _ in range(2)] == [302, 302]


def test_invisible_characters_of_a_text_are_kept(world: World, ada: Client) -> None:
    task = world.task(title="a\u200bb")
    html = ada.get(f"/tasks/{task.id}/edit/").text
    assert "a&#8203;b" in html or "a&#x200b;b" in html.lower()


@pytest.mark.parametrize("title", ["", "x" * 301])
def test_text_that_is_refused_is_shown_again(title: str, world: World, ada: Client) -> None:
    answer = save(ada, world.task(), title=title, description="my text")
    assert answer.status_code == 422
    assert "my text</textarea>" in answer.text


def test_new_task_has_the_base_branch_of_the_form(world: World, ada: Client) -> None:
    values = {
        "title": "From a release",
        "repository": world.repository.pk,
        "agent_profile": world.profile.pk,
        "executor": world.executor.pk,
        "only": "1",
    }
    assert ada.post("/", {**values, "base_branch": "release/1.0"}).status_code == 302
    assert Task.objects.get(title="From a release").base_branch == "release/1.0"
    refused = ada.post("/", {**values, "base_branch": "../x"})
    assert refused.status_code == 422
    assert "This cannot be the name of a branch." in refused.text


@pytest.mark.parametrize("base", ["", "next"])
def test_new_task_without_a_base_starts_where_the_repository_says(base: str, world: World, ada: Client) -> None:
    Repository.objects.filter(pk=world.repository.pk).update(default_branch="gone", default_base=base)
    assert "If empty, where new tasks of the repository start." in ada.get("/").text
    values = {"title": "New", "repository": world.repository.pk, "only": "1", "base_branch": ""}
    answer = ada.post("/", {**values, "agent_profile": world.profile.pk, "executor": world.executor.pk})
    assert answer.status_code == 302
    assert Task.objects.get(title="New").base_branch == base


def test_base_branch_can_change_until_a_session_has_started(world: World, ada: Client) -> None:
    task = world.task(base_branch="main")
    session = make_session(task=task)
    session.intents.update(done_at=timezone.now())
    ExecutorRunning.objects.filter(session=session).update(status=ExecutorRunning.Status.STOPPED)
    assert 'name="base_branch" value="main"' in ada.get(f"/tasks/{task.id}/edit/").text
    assert save(ada, task, base_branch="next", shown_base="main").status_code == 302
    assert Task.objects.get(id=task.id).base_branch == "next"
    assert save(ada, task, title="Theirs", base_branch="main", shown_base="main").status_code == 302
    assert Task.objects.get(id=task.id).base_branch == "next", "this form has not changed it"
    session.worktree_id = str(session.id)
    session.save(update_fields=["worktree_id"])
    page = ada.get(f"/tasks/{task.id}/edit/").text
    assert 'name="base_branch"' not in page and "a session has started from it" in page and "<code>next</code>" in page
    task.refresh_from_db()
    answer = save(ada, task, title="Mine", base_branch="main", shown_base="next")
    assert answer.status_code == 409
    assert "a session has started from it" in answer.text and 'value="Mine"' in answer.text
    assert Task.objects.get(id=task.id).base_branch == "next"


def test_name_that_is_no_branch_is_shown_again(world: World, ada: Client) -> None:
    task = world.task()
    answer = save(ada, task, base_branch="../x", shown_base="")
    assert answer.status_code == 422
    assert "The base branch cannot have this name." in answer.text and 'value="../x"' in answer.text
