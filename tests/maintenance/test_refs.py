"""Recovery refs: those of deleted sessions go, and of closed ones those that keep nothing of their own."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from executors_app import cleanup
from executors_app.agentctl.protocol import EXECUTION_MARKER
from executors_app.agentctl.workspace.git import WorkspaceGit
from executors_app.agentctl.workspace.snapshots import SnapshotLimits, take_snapshot
from executors_app.repositories.archive import Archive
from executors_app.repositories.git import GitFailed
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from sessions_app.models import Leftover, Repository, TaskSession
from sessions_app.services.tasks import delete_session
from tests.executors.repositories import commit, make_repository, run_git
from tests.maintenance.chores import LONG_AGO, closed_session, do
from tests.supervisor.rows import execution_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def repository(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return make_repository(tmp_path / "repository")


@pytest.fixture
def session(repository: Path) -> TaskSession:
    """Closed long ago; its worktree was the repository itself, on the branch ``main``."""
    session = closed_session(worktree_branch="main")
    Repository.objects.update(path=str(repository))
    return session


def keep(repository: Path, session: TaskSession) -> str:
    """Take a snapshot as agentctl does; its ref."""
    git = WorkspaceGit(repository, {"KANDEV_EXECUTION_ID": "e"})
    take_snapshot(git, str(session.id), repository.parent / "copy", "turn_end", SnapshotLimits())
    ref = f"refs/kandev/recovery/{session.id}"
    assert refs(repository) == [ref]
    return ref


def refs(repository: Path) -> list[str]:
    return run_git(repository, "for-each-ref", "--format=%(refname)", "refs/kandev/").splitlines()


def test_a_snapshot_that_the_branch_makes_needless_goes(repository: Path, session: TaskSession) -> None:
    keep(repository, session)
    assert do("recovery_refs", dry_run=True).removed == 1
    assert refs(repository)
    commit(repository, "later", "more\n")  # the branch has gone on from there
    assert do("recovery_refs").removed == 1
    assert refs(repository) == []


@pytest.mark.parametrize("how", ["modified", "untracked", "staged", "branch elsewhere", "no branch", "recently"])
def test_a_snapshot_with_anything_of_its_own_stays(how: str, repository: Path, session: TaskSession) -> None:
    if how == "modified":
        (repository / "README").write_text("changed\n")
    elif how == "untracked":
        (repository / "new").write_text("new\n")
    elif how == "staged":
        (repository / "README").write_text("changed\n")
        run_git(repository, "add", "README")
        (repository / "README").write_text("hello\n")
    elif how == "branch elsewhere":
        commit(repository, "lost", "work\n")
    ref = keep(repository, session)
    run_git(repository, "reset", "--quiet", "--hard", "HEAD" if how != "branch elsewhere" else "HEAD~1")
    if how == "no branch":
        TaskSession.objects.filter(id=session.id).update(worktree_branch="gone", updated_at=LONG_AGO)
    if how == "recently":
        TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(days=1))
    assert do("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_a_session_that_is_not_closed_keeps_its_snapshot(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT")
    assert do("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_only_refs_of_deleted_sessions_are_removed_after_a_while(repository: Path, session: TaskSession) -> None:
    (repository / "new").write_text("new\n")
    keep(repository, session)
    other = f"refs/kandev/recovery/{str(session.id)[:-1]}"
    for ref in (f"refs/kandev/kept/{session.id}/1", f"refs/kandev/arrived/{session.id}/0", other):
        run_git(repository, "update-ref", ref, "HEAD")
    delete_session(session)
    assert do("recovery_refs").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert do("recovery_refs").removed == 3
    assert refs(repository) == [other]
    assert do("journals").removed == 0
    assert not Leftover.objects.exists(), "nothing of it is left to be removed"


def test_a_session_that_is_only_missing_keeps_its_refs(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    session.delete()  # as in a copy of the database that is older
    assert do("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_a_repository_that_is_away_is_waited_for(repository: Path, session: TaskSession) -> None:
    keep(repository, session)
    delete_session(session)
    Leftover.objects.update(deleted_at=LONG_AGO)
    repository.rename(repository.with_name("away"))
    done = do("recovery_refs")
    assert (done.removed, done.kept, done.failed) == (0, 1, False)
    repository.with_name("away").rename(repository)
    assert do("recovery_refs").removed == 1


def test_a_ref_that_moved_meanwhile_is_not_removed(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    found = cleanup.find_redundant_snapshot(repository, str(session.id), "main")
    assert found is not None
    run_git(repository, "update-ref", ref, commit(repository, "later", "more\n"))
    with pytest.raises(GitFailed):
        cleanup.drop_refs(repository, str(session.id), [found])
    assert refs(repository) == [ref]


def archive_of(session: TaskSession, repository: Path, root: Path) -> Archive:
    """What has come home of the session: its branch, and the snapshot that the repository has."""
    store = ObjectStore.of(root, TeamRepository.open(repository))
    store.update()
    branch = f"kandev/{str(session.id).replace('-', '')[:12]}"
    run_git(repository, "branch", branch)
    archive = Archive.of(root, str(session.id), store)
    archive.adopt(branch)
    return archive


def test_the_archive_of_a_deleted_session_goes_with_its_refs(
    repository: Path, session: TaskSession, tmp_path: Path
) -> None:
    keep(repository, session)
    archive = archive_of(session, repository, tmp_path / "data")
    delete_session(session)
    assert do("recovery_refs").removed == 0
    assert archive.exists()
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert do("recovery_refs").removed == 2
    assert not archive.exists()
    assert refs(repository) == []


def leave_workspace(session: TaskSession, root: Path) -> Path:
    """As an agent may leave it: a directory closed against writing, one that is nested deeply, a link to elsewhere."""
    workspace = root / "workspaces" / str(session.id)
    (workspace / "closed").mkdir(parents=True)
    (workspace / "closed" / "file").write_text("x")
    (workspace / "closed").chmod(0o500)
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    (workspace / "link").symlink_to(root.parent)
    return workspace


def test_the_workspace_of_a_deleted_session_goes_however_it_was_left(
    repository: Path, session: TaskSession, tmp_path: Path
) -> None:
    workspace = leave_workspace(session, tmp_path / "data")
    delete_session(session)
    assert do("recovery_refs").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert do("recovery_refs").removed == 1
    assert not workspace.exists()
    assert not list(workspace.parent.iterdir())
    assert repository.is_dir()


def test_a_workspace_in_which_something_lives_stays(repository: Path, session: TaskSession, tmp_path: Path) -> None:
    workspace = leave_workspace(session, tmp_path / "data")
    execution = str(execution_of(session).id)
    delete_session(session)
    Leftover.objects.update(deleted_at=LONG_AGO)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={EXECUTION_MARKER: execution}) as living:
        assert (do("recovery_refs").removed, do("recovery_refs").kept) == (0, 1)
        assert workspace.exists()
        assert living.stdin
        living.stdin.close()
    assert do("recovery_refs").removed == 1


def test_a_needless_snapshot_goes_from_the_archive_too(repository: Path, session: TaskSession, tmp_path: Path) -> None:
    ref = keep(repository, session)
    archive = archive_of(session, repository, tmp_path / "data")
    assert ref in archive.tips()
    assert do("recovery_refs").removed == 1
    assert list(archive.tips()) == [f"refs/heads/kandev/{str(session.id).replace('-', '')[:12]}"]
