"""Deleting a task on its page: what would be lost is said first, and nothing is deleted by looking."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from executors_app.models import ExecutorRunning
from sessions_app.models import Task, TaskSession
from tests.pages.world import World

pytestmark = pytest.mark.django_db


def at_rest(session: TaskSession) -> TaskSession:
    session.intents.update(done_at=timezone.now())
    session.executions.update(status=ExecutorRunning.Status.STOPPED)
    return session


def test_page_says_what_is_deleted_and_only_a_click_deletes_it(world: World, ada: Client) -> None:
    session = at_rest(world.session())
    address = f"/tasks/{session.task_id}/delete/"
    assert f'href="{address}"' in ada.get(f"/tasks/{session.task_id}/").text
    Task.objects.update(archived_at=timezone.now())
    assert f'href="{address}"' in ada.get(f"/tasks/{session.task_id}/").text
    html = ada.get(address).text
    assert "1 session, its conversation, receipts and saved work" in html
    assert Task.objects.count() == 1
    assert ada.post(address, follow=True).redirect_chain == [("/", 302)]
    assert not Task.objects.exists()


def test_task_whose_agent_may_run_stays_and_the_page_says_why(world: World, ada: Client) -> None:
    session = world.running_session()
    answer = ada.post(f"/tasks/{session.task_id}/delete/")
    assert answer.status_code == 409
    assert "Stop its sessions first." in answer.text
    assert Task.objects.exists()


def test_stranger_deletes_nothing(world: World, bob: Client) -> None:
    task = world.task()
    assert bob.post(f"/tasks/{task.id}/delete/").status_code == 404
    assert Task.objects.exists()
