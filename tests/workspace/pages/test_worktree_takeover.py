"""From a session whose agent cannot resume to a new session in the same worktree."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils.html import escape

from executors_app.models import AgentProfile, Executor
from sessions_app.models import TaskSession
from tests.pages.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
BUTTON = "New session in this worktree"


@pytest.fixture
def old(world: World, monkeypatch: pytest.MonkeyPatch) -> TaskSession:
    monkeypatch.setattr("sessions_app.board.services.tasks.worktree_loss_reason", lambda session: "")
    session = world.resting_session()
    AgentProfile.objects.update(supports_session_resume=False)
    TaskSession.objects.update(worktree_path="/srv/worktrees/old", worktree_branch="kandev/old")
    session.refresh_from_db()
    return session


def page(client: Client, session: TaskSession) -> str:
    return client.get(f"/tasks/{session.task_id}/sessions/{session.id}/").content.decode()


def test_session_page_links_to_a_form_with_its_worktree(ada: Client, old: TaskSession) -> None:
    link = f"/tasks/{old.task_id}/?worktree_of={old.id}"
    assert f'href="{link}#new-session">{BUTTON}<' in page(ada, old)
    form = ada.get(link).content.decode()
    assert '<details class="card new" id="new-session" open>' in form
    assert f'<option value="{old.id}" selected>{escape(f"kandev/old on {old.executor.name}")}</option>' in form


def test_form_creates_a_session_in_that_worktree(ada: Client, old: TaskSession) -> None:
    values = {"prompt": "Go on", "agent_profile": old.agent_profile_id, "executor": old.executor_id}
    ada.post(f"/tasks/{old.task_id}/", {**values, "worktree_of": old.id})
    new = TaskSession.objects.exclude(id=old.id).get()
    assert new.worktree_owner_id == old.id


@pytest.mark.parametrize("name", ["", "x", "8c7f4a06-6d1c-4b80-9c3c-2f4a7c0a2d11"])
def test_unknown_session_in_the_address_offers_a_new_worktree(ada: Client, old: TaskSession, name: str) -> None:
    form = ada.get(f"/tasks/{old.task_id}/?worktree_of={name}")
    assert form.status_code == 200
    assert '<option value="" selected>New worktree</option>' in form.content.decode()


def test_worktree_is_not_offered_where_it_cannot_be_shared(ada: Client, old: TaskSession) -> None:
    Executor.objects.filter(id=old.executor_id).update(runtime="remote")
    html = page(ada, old)
    assert BUTTON not in html
    assert ">Start fresh in this workspace<" in html
