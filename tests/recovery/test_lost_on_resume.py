"""Resuming a session without worktree and branch fails in the request itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group

from executors_app.machine.process import identity
from sessions_app.kernel.services.errors import TerminalState, WorktreeMissing
from sessions_app.models import Intent, Repository, TaskSession, Turn
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from tests.executors.repositories import make_repository, run_git
from tests.supervisor.rows import MINE, change, execution_of, fresh, make_task, running_session

pytestmark = pytest.mark.django_db
BRANCH = "kandev/lost"


@pytest.fixture
def session(tmp_path: Path, settings: Any) -> TaskSession:
    """Return a session whose agent has exited and whose worktree exists."""
    settings.KANDEV_DATA_DIR = str(tmp_path / "data")
    repository = make_repository(tmp_path / "repository")
    run_git(repository, "worktree", "add", "--quiet", "-b", BRANCH, str(tmp_path / "worktree"))
    team, _ = Group.objects.get_or_create(name="team")
    row = Repository.objects.create(team=team, name="lost", path=str(repository))
    made = running_session(launch_id="", task=make_task(repository=row))
    where = {"worktree_path": str(tmp_path / "worktree"), "worktree_branch": BRANCH}
    change(execution_of(made), status="stopped", host_id=identity.host_id(), owner="", **where)
    Turn.objects.create(session=made, message_id="1", state="completed", started_at=made.created_at)
    return change(made, **where)


def remove_worktree(session: TaskSession) -> None:
    shutil.rmtree(session.worktree_path)
    run_git(Path(session.task.repository.path), "worktree", "prune")  # type: ignore[union-attr]


def remove_all(session: TaskSession) -> None:
    remove_worktree(session)
    run_git(Path(session.task.repository.path), "branch", "--delete", "--force", BRANCH)  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["auto", "resume", "fresh_start", "workspace_only"])
def test_resume_without_worktree_and_branch_fails_immediately(session: TaskSession, mode: str) -> None:
    remove_all(session)
    with pytest.raises(WorktreeMissing, match=f"was deleted, and its branch {BRANCH} was not found"):
        intents.request_resume(session.id, None, mode)
    assert not Intent.objects.filter(session=session, kind="start", done_at=None).exists()


def test_status_reports_the_missing_worktree(session: TaskSession) -> None:
    remove_all(session)
    with pytest.raises(WorktreeMissing):
        intents.request_resume(session.id, None)
    status = session_status(fresh(session))
    assert (status["state"], status["error_code"]) == ("ERROR", "worktree_missing")
    assert (status["is_resumable"], status["requires_new_session"]) == (False, True)
    assert status["supports_workspace_only"] is False
    assert (status["executor_status"], status["resume_reason"]) == ("error", "worktree_missing")


@pytest.mark.parametrize("mode", ["auto", "resume", "fresh_start", "workspace_only"])
def test_worktree_that_is_there_again_is_resumed(session: TaskSession, tmp_path: Path, mode: str) -> None:
    # A disk that is mounted late: repository and worktrees are missing, and then they are back.
    places = [Path(session.worktree_path), tmp_path / "repository"]
    for place in places:
        place.rename(place.with_name(f"{place.name} unmounted"))
    with pytest.raises(WorktreeMissing):
        intents.request_resume(session.id, None, mode)
    missing = session_status(fresh(session))
    assert missing["error_code"] == "worktree_missing"
    for place in places:
        place.with_name(f"{place.name} unmounted").rename(place)

    intents.request_resume(session.id, None, mode)
    assert Intent.objects.filter(session=session, kind="start", done_at=None).exists()
    status = session_status(fresh(session))
    assert (status["state"], status["error_code"], status["is_resumable"]) == ("WAITING_FOR_INPUT", "", True)
    assert execution_of(session).error_code == ""


def test_worktree_that_its_branch_can_rebuild_is_not_missing(session: TaskSession) -> None:
    remove_worktree(session)
    intents.request_resume(session.id, None)
    assert Intent.objects.filter(session=session, kind="start", done_at=None).exists()


def test_worktree_on_another_machine_is_not_reported_missing(session: TaskSession) -> None:
    remove_all(session)
    change(execution_of(session), host_id="another-machine")
    intents.request_resume(session.id, None)
    assert fresh(session).error_code == ""


def test_running_session_is_left_alone(session: TaskSession) -> None:
    remove_all(session)
    change(execution_of(session), status="ready", owner=MINE.owner)
    change(session, launch_id="launch")
    intents.request_resume(session.id, None)
    assert fresh(session).error_code == ""


def test_ended_session_reports_its_end(session: TaskSession) -> None:
    remove_all(session)
    change(session, state="COMPLETED")
    with pytest.raises(TerminalState):
        intents.request_resume(session.id, None)
