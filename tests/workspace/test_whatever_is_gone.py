"""History, changes and files of a session stay readable whatever is lost, and are marked as saved."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import worktrees
from executors_app.machine.git.recovery_snapshots import session_recovery_ref
from executors_app.machine.git.worktrees import Worktree
from executors_app.models import Executor, ExecutorRunning
from sessions_app.models import ContinuityReceipt, TaskSession, Turn
from tests.api.world import World, client_of, make_world, message, say
from tests.executors.repositories import make_repository, run_git
from tests.workspace.served import REAL, Place, point_at
from tests.workspace.trees import git_of, make_six

NOWHERE = "http://127.0.0.1:1"
HISTORY = ("messages/", "events/", "receipts/", "runs/", "prompts/", "permissions/", "status/", "")
REVIEWED = "review/hunks/?path=one"
SEARCHED = "files/search/?query=one"
WORKSPACE = ("files/", SEARCHED, "files/content/?path=one", "git/status/", "git/diff/", "git/log/", "review/", REVIEWED)


@pytest.fixture
def worktree(db: None, tmp_path: Path) -> Worktree:
    repository = make_repository(tmp_path / "repository")
    found = worktrees.session_worktree(tmp_path / "data", "a-session")
    worktrees.make_worktree(repository, "", found, existed=False)
    return found


@pytest.fixture
def world(worktree: Worktree, tmp_path: Path) -> World:
    """Return API objects with messages and six uncommitted changes."""
    made = make_world()
    made.repository.path = str(tmp_path / "repository")
    made.repository.save()
    make_six(worktree.path)
    take_snapshot(git_of(worktree.path), str(made.session.id), tmp_path / "copy", "turn_end", SnapshotLimits())
    say(made.session)
    message(made.session, 1, "Done.")
    made.mark_running(NOWHERE)
    values = {"worktree_path": str(worktree.path), "worktree_branch": worktree.branch}
    ExecutorRunning.objects.update(**values, workspace_path=str(worktree.path))
    TaskSession.objects.update(**values)
    return made


@pytest.fixture
def api(world: World) -> APIClient:
    return client_of(world.member)


def _worktree(world: World, worktree: Worktree) -> None:
    shutil.rmtree(worktree.path)


def _worktree_by_git(world: World, worktree: Worktree) -> None:
    run_git(Path(world.repository.path), "worktree", "remove", "--force", str(worktree.path))


def _execution(world: World, worktree: Worktree) -> None:
    ExecutorRunning.objects.update(status="stopped", agentctl_url="", host_id="")


def _row_of_the_execution(world: World, worktree: Worktree) -> None:
    ExecutorRunning.objects.all().delete()


def _agentctl(world: World, worktree: Worktree) -> None:
    ExecutorRunning.objects.update(agentctl_url=NOWHERE)


def _host(world: World, worktree: Worktree) -> None:
    ExecutorRunning.objects.update(host_id="another", status="error", status_reason="other_host")


def _container(world: World, worktree: Worktree) -> None:
    Executor.objects.update(runtime="local_docker")
    gone = {"runtime": "local_docker", "container_id": "0" * 64, "status": "error", "status_reason": "container_gone"}
    ExecutorRunning.objects.update(**gone)
    _worktree(world, worktree)


def _runtime(world: World, worktree: Worktree) -> None:
    Executor.objects.update(runtime="of-a-plugin-that-was-removed")
    ExecutorRunning.objects.update(runtime="of-a-plugin-that-was-removed")


def _session(world: World, worktree: Worktree) -> None:
    TaskSession.objects.update(state="FAILED", error_code="worktree_missing", desired_state="stopped")
    _execution(world, worktree)


def _task(world: World, worktree: Worktree) -> None:
    client_of(world.member).post(f"/api/v1/tasks/{world.task.id}/archive/")
    _execution(world, worktree)


GONE = (
    *(_worktree, _worktree_by_git, _execution, _row_of_the_execution, _agentctl, _host, _container, _runtime),
    *(_session, _task),
)


@pytest.mark.parametrize("lose", GONE, ids=[lose.__name__[1:] for lose in GONE])
def test_history_diffs_and_files_are_available(
    world: World, api: APIClient, worktree: Worktree, lose: Callable[[World, Worktree], None]
) -> None:
    lose(world, worktree)

    for tail in HISTORY:
        assert api.get(world.url(tail)).status_code == 200, tail
    assert [one["text"] for one in api.get(world.url("messages/")).json()["results"]] == ["Done."]
    assert ContinuityReceipt.objects.filter(session=world.session).count() == 1

    for tail in WORKSPACE:
        lost = api.get(world.url(tail))
        assert (lost.status_code, lost.json()["code"]) == (503, "agentctl_unreachable"), tail
    kept = {tail: get_kept(api, world, tail) for tail in WORKSPACE}
    assert kept["files/content/?path=one"]["content"] == "after\n"
    names = {entry["name"] for entry in kept["files/"]["entries"]}
    assert {"one", "two", "three", "staged", "untracked", "with space\nand line"} <= names
    assert kept[SEARCHED]["entries"] == [{"path": "one", "type": "file"}]
    status = kept["git/status/"]
    assert [len(status[part]) for part in ("staged", "unstaged", "untracked")] == [1, 3, 2]
    assert "-before\n+after\n" in kept["git/diff/"]["unstaged"]
    changed = {file["path"]: file["change"] for file in kept["review/"]["files"]}
    assert changed.keys() == {"one", "two", "three", "staged", "untracked", "with space\nand line"}
    assert kept[REVIEWED]["files"][0]["hunks"][0]["lines"] == ["+after"]
    assert kept["git/log/"]["commits"][0]["subject"] == "Write three"
    assert all(one["kept"]["commit"] for one in kept.values())


def get_kept(api: APIClient, world: World, tail: str) -> Any:
    answer = api.get(world.url(tail + ("&" if "?" in tail else "?") + "kept=true"))
    assert answer.status_code == 200, (tail, answer.text)
    return answer.json()


def test_saved_work_is_readable_after_a_worktree_vanishes_under_agentctl(
    world: World, api: APIClient, worktree: Worktree, tmp_path: Path
) -> None:
    place = Place(tmp_path / "served")
    place.base.mkdir()
    place.workspace.symlink_to(worktree.path)
    with place.agentctl(REAL):
        point_at(world, place)
        assert api.get(world.url("files/")).status_code == 200
        shutil.rmtree(worktree.path)
        for tail in WORKSPACE:
            lost = api.get(world.url(tail))
            assert (lost.status_code, lost.json()["code"]) == (409, "worktree_missing"), tail
            assert get_kept(api, world, tail)["kept"]["commit"]
        made = api.post(world.url("git/commit/"), {"message": "Too late"}, format="json")
        assert (made.status_code, made.json()["code"]) == (409, "worktree_missing")


@pytest.mark.parametrize("gone", ["branch", "repository"])
def test_loss_of_the_repository_too_is_reported(world: World, api: APIClient, worktree: Worktree, gone: str) -> None:
    _worktree_by_git(world, worktree)
    if gone == "branch":
        run_git(Path(world.repository.path), "branch", "-D", worktree.branch)
        # Without it, the files of the newest snapshot are shown.
        run_git(Path(world.repository.path), "update-ref", "-d", session_recovery_ref(str(world.session.id)))
    else:
        shutil.rmtree(world.repository.path)
    for tail in WORKSPACE:
        answer = api.get(world.url(tail + ("&" if "?" in tail else "?") + "kept=true"))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), tail
        assert gone in answer.json()["message"]
    assert api.get(world.url("messages/")).json()["count"] == 1
    assert Turn.objects.count() == 0
