"""A new session continues in the worktree, with the uncommitted changes, of a session that cannot resume."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.board.services import tasks
from sessions_app.kernel.services.errors import Conflict, WorktreeMissing, WorktreeNotShared
from sessions_app.models import TaskSession
from sessions_app.supervisor.executions import launch_spec_of, load_execution_facts
from sessions_app.workflows.models import WorkflowRun
from tests.supervisor.rows import change, execution_of, fresh, make_task, make_user, open_orders, running_session

pytestmark = pytest.mark.django_db
WHERE: dict[str, Any] = {"worktree_path": "/srv/worktrees/old", "worktree_branch": "kandev/old"}


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> TaskSession:
    """Return a session that cannot resume and whose worktree exists."""
    monkeypatch.setattr("sessions_app.board.services.tasks.worktree_loss_reason", lambda session: "")
    session = running_session(launch_id="", state="ERROR", error_code="not_resumable", **WHERE)
    change(execution_of(session), resume_token="", **WHERE)
    return fresh(session)


def successor(old: TaskSession, **more: Any) -> TaskSession:
    return tasks.create_session(
        make_user(), old.task, old.agent_profile, old.executor, **{"worktree_of": old, "prompt": "Go on", **more}
    )


def test_successor_works_in_the_old_worktree(old: TaskSession) -> None:
    new = successor(old)
    assert new.worktree_owner_id == old.id
    spec = launch_spec_of(execution_of(new), new)
    assert (spec.worktree_owner, spec.worktree_path, spec.worktree_branch) == (str(old.id), *WHERE.values())
    facts = load_execution_facts(new.id)
    assert facts is not None
    assert [kind for kind, _ in open_orders(new)] == ["start"]


def test_predecessor_is_stopped_and_does_not_come_back(old: TaskSession) -> None:
    successor(old)
    assert fresh(old).desired_state == "stopped"
    assert [kind for kind, _ in open_orders(fresh(old))] == ["stop"]


def test_later_successor_has_the_same_worktree_owner(old: TaskSession) -> None:
    second = successor(old)
    third = successor(old, worktree_of=second)
    assert third.worktree_owner_id == old.id
    assert fresh(second).desired_state == "stopped"


def test_worktree_of_a_closed_session_can_be_taken_over(old: TaskSession) -> None:
    change(old, state="COMPLETED")
    assert successor(fresh(old)).worktree_owner_id == old.id


def test_worktree_of_a_working_agent_is_not_taken_over(old: TaskSession) -> None:
    change(old, launch_id="launch", state="RUNNING", error_code="")
    with pytest.raises(Conflict, match="Stop its session first"):
        successor(fresh(old))
    assert fresh(old).desired_state == "running"


def test_worktree_of_a_running_workflow_is_not_taken_over(old: TaskSession) -> None:
    run = {"team": old.task.team, "task": old.task, "executor": old.executor, "workspace": old}
    WorkflowRun.objects.create(started_at=timezone.now(), **run)
    with pytest.raises(Conflict, match="workflow"):
        successor(old)


def test_missing_worktree_is_refused_immediately(old: TaskSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_app.board.services.tasks.worktree_loss_reason", lambda session: "It was deleted.")
    with pytest.raises(WorktreeMissing, match="It was deleted"):
        successor(old)
    assert TaskSession.objects.count() == 1


def test_worktree_of_another_task_is_refused(old: TaskSession) -> None:
    with pytest.raises(WorktreeNotShared):
        tasks.create_session(make_user(), make_task(), old.agent_profile, old.executor, worktree_of=old)


def test_api_creates_one_successor_per_idempotency_key(old: TaskSession) -> None:
    api = APIClient()
    api.force_authenticate(make_user())
    request = {
        "agent_profile": str(old.agent_profile_id),
        "executor": str(old.executor_id),
        "worktree_of": str(old.id),
        "idempotency_key": "once",
    }
    url = f"/api/v1/tasks/{old.task_id}/sessions/"
    answers = [api.post(url, request, format="json") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    made = TaskSession.objects.get(id=answers[0].json()["id"])
    assert made.worktree_owner_id == old.id
    other = {**request, "worktree_of": None, "idempotency_key": "other"}
    assert api.post(url, {**other, "worktree_of": str(make_task().id)}, format="json").status_code == 400
