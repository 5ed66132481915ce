"""The page of a task shows a limited number of its sessions, newest first."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.board import forms
from sessions_app.board.services.tasks import create_session
from sessions_app.board.views import tasks as task_page
from sessions_app.models import Task, TaskSession
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_page, "SESSIONS_PER_PAGE", 3)
    monkeypatch.setattr(forms, "MAX_WORKTREES_OFFERED", 3)


def task_with_sessions(world: World, count: int) -> tuple[Task, list[TaskSession]]:
    """Return a task with sessions that own a worktree, oldest first."""
    task = world.task()
    sessions = [create_session(world.ada, task, world.profile, world.executor) for _ in range(count)]
    for age, session in enumerate(reversed(sessions)):
        created_at = timezone.now() - timedelta(minutes=age)
        TaskSession.objects.filter(id=session.id).update(created_at=created_at, worktree_path=f"/srv/{age}")
    return task, sessions


def shown_sessions(page: str) -> list[str]:
    """Return the paths of the sessions that a page lists, in its order."""
    return re.findall(r'<li>\s*<a href="([^"]*)">', page[page.index('id="sessions-title"') :])


@pytest.mark.parametrize(
    ("query", "shown", "links"),
    [
        ("", [6, 5, 4], ["Older sessions"]),
        ("?page=2", [3, 2, 1], ["Newer sessions", "Older sessions"]),
        ("?page=3", [0], ["Newer sessions"]),
        ("?page=99", [0], ["Newer sessions"]),
    ],
)
def test_pages_of_a_task_lead_to_its_older_sessions(
    query: str, shown: list[int], links: list[str], ada: Client, world: World
) -> None:
    task, sessions = task_with_sessions(world, 7)
    page = ada.get(f"/tasks/{task.id}/{query}").text
    assert shown_sessions(page) == [path_of(sessions[number]) for number in shown]
    assert re.findall(r">(\w+ sessions)</a>", page) == links
    part = ada.get(f"/tasks/{task.id}/live/{query}").json()["parts"]["sessions"]
    assert shown_sessions(part) == shown_sessions(page)


def test_updates_of_an_older_page_keep_its_sessions(ada: Client, world: World) -> None:
    task, _ = task_with_sessions(world, 4)
    assert f'data-live="/tasks/{task.id}/live/?page=2"' in ada.get(f"/tasks/{task.id}/?page=2").text
    assert f'data-live="/tasks/{task.id}/live/"' in ada.get(f"/tasks/{task.id}/").text


def test_task_page_query_count_does_not_grow_with_sessions(ada: Client, world: World) -> None:
    def queries(count: int) -> int:
        task, _ = task_with_sessions(world, count)
        with CaptureQueriesContext(connection) as seen:
            ada.get(f"/tasks/{task.id}/")
        return len(seen)

    assert queries(1) == queries(10)


def test_form_offers_the_newest_worktrees_and_the_chosen_one(ada: Client, world: World) -> None:
    task, sessions = task_with_sessions(world, 7)

    def offered(query: str) -> list[str]:
        page = ada.get(f"/tasks/{task.id}/{query}").text
        options = page[page.index('name="worktree_of"') :].partition("</select>")[0]
        return re.findall(r'value="([^"]+)"', options)

    newest = [str(session.id) for session in reversed(sessions[4:])]
    assert offered("") == newest
    assert offered(f"?worktree_of={sessions[0].id}") == [*newest, str(sessions[0].id)]


def test_worktree_that_newer_ones_have_displaced_is_still_accepted(
    ada: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_app.board.services.tasks.worktree_loss_reason", lambda session: "")
    task, sessions = task_with_sessions(world, 7)
    form = {"agent_profile": world.profile.id, "executor": world.executor.id, "worktree_of": sessions[0].id}
    answer = ada.post(f"/tasks/{task.id}/", form)
    made = task.sessions.latest("created_at")
    assert answer.headers["Location"] == path_of(made)
    assert made.shares_worktree_of == sessions[0]
