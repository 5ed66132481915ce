"""Recovery refs: those of deleted sessions, and redundant ones of closed sessions, are deleted."""

from __future__ import annotations

import os
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from executors_app import cleanup
from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.repositories.archive import Archive
from executors_app.repositories.git import GitFailed
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.wire.protocol import EXECUTION_MARKER
from sessions_app.board.services.tasks import delete_session
from sessions_app.models import Leftover, Repository, TaskSession
from tests.executors.repositories import commit, make_repository, run_git
from tests.maintenance.chores import LONG_AGO, closed_session, run_chore
from tests.supervisor.rows import execution_of
from tests.workspace.trees import add_submodule

pytestmark = pytest.mark.django_db


@pytest.fixture
def repository(tmp_path: Path, settings: Any) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    return make_repository(tmp_path / "repository")


@pytest.fixture
def session(repository: Path) -> TaskSession:
    """Return a session closed long ago whose worktree was the repository itself, on the branch ``main``."""
    session = closed_session(worktree_branch="main")
    Repository.objects.update(path=str(repository))
    return session


def keep(repository: Path, session: TaskSession) -> str:
    """Take a snapshot as agentctl does; return its ref."""
    git = WorkspaceGit(repository, {"KANDEV_EXECUTION_ID": "e"})
    take_snapshot(git, str(session.id), repository.parent / "copy", "turn_end", SnapshotLimits())
    ref = f"refs/kandev/recovery/{session.id}"
    assert refs(repository) == [ref]
    return ref


def refs(repository: Path) -> list[str]:
    return run_git(repository, "for-each-ref", "--format=%(refname)", "refs/kandev/").splitlines()


def test_snapshot_contained_in_the_branch_is_deleted(repository: Path, session: TaskSession) -> None:
    keep(repository, session)
    run_git(repository, "update-ref", f"refs/kandev/turns/{session.id}", "HEAD")
    assert run_chore("recovery_refs", dry_run=True).removed == 2
    assert len(refs(repository)) == 2
    commit(repository, "later", "more\n")  # the branch has moved on from there
    assert run_chore("recovery_refs").removed == 2
    assert refs(repository) == []


@pytest.mark.parametrize(
    "how", ["modified", "untracked", "staged", "submodule", "branch elsewhere", "no branch", "recently"]
)
def test_snapshot_with_own_content_is_kept(how: str, repository: Path, session: TaskSession) -> None:
    if how == "modified":
        (repository / "README").write_text("changed\n")
    elif how == "untracked":
        (repository / "new").write_text("new\n")
    elif how == "staged":
        (repository / "README").write_text("changed\n")
        run_git(repository, "add", "README")
        (repository / "README").write_text("hello\n")
    elif how == "submodule":
        add_submodule(repository, make_repository(repository.parent / "library", "f.txt", "lib\n"))
        (repository / "sub" / "f.txt").write_text("precious\n")
    elif how == "branch elsewhere":
        commit(repository, "lost", "work\n")
    ref = keep(repository, session)
    run_git(repository, "reset", "--quiet", "--hard", "HEAD" if how != "branch elsewhere" else "HEAD~1")
    if how == "no branch":
        TaskSession.objects.filter(id=session.id).update(worktree_branch="gone", updated_at=LONG_AGO)
    if how == "recently":
        TaskSession.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(days=1))
    assert run_chore("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_open_session_keeps_its_snapshot(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    TaskSession.objects.filter(id=session.id).update(state="WAITING_FOR_INPUT")
    assert run_chore("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_only_refs_of_deleted_sessions_are_removed_after_a_while(repository: Path, session: TaskSession) -> None:
    (repository / "new").write_text("new\n")
    keep(repository, session)
    other = f"refs/kandev/recovery/{str(session.id)[:-1]}"
    others = [
        f"refs/kandev/{kind}" for kind in (f"kept/{session.id}/1", f"arrived/{session.id}/0", f"turns/{session.id}")
    ]
    for ref in (*others, other):
        run_git(repository, "update-ref", ref, "HEAD")
    delete_session(session)
    assert run_chore("recovery_refs").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert run_chore("recovery_refs").removed == 4
    assert refs(repository) == [other]
    assert run_chore("journals").removed == 0
    assert not Leftover.objects.exists(), "no leftover is recorded"


def test_session_missing_from_the_database_keeps_its_refs(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    session.delete()  # as in an older copy of the database
    assert run_chore("recovery_refs").removed == 0
    assert refs(repository) == [ref]


def test_unavailable_repository_is_retried_later(repository: Path, session: TaskSession) -> None:
    keep(repository, session)
    delete_session(session)
    Leftover.objects.update(deleted_at=LONG_AGO)
    repository.rename(repository.with_name("away"))
    done = run_chore("recovery_refs")
    assert (done.removed, done.kept, done.failed) == (0, 1, False)
    repository.with_name("away").rename(repository)
    assert run_chore("recovery_refs").removed == 1


def test_ref_moved_meanwhile_is_not_deleted(repository: Path, session: TaskSession) -> None:
    ref = keep(repository, session)
    found = cleanup.find_redundant_snapshot(repository, str(session.id), "main")
    assert found is not None
    run_git(repository, "update-ref", ref, commit(repository, "later", "more\n"))
    with pytest.raises(GitFailed):
        cleanup.drop_refs(repository, str(session.id), [found])
    assert refs(repository) == [ref]


def archive_of(session: TaskSession, repository: Path, root: Path) -> Archive:
    """Return an archive with the session's branch and the repository's snapshot."""
    store = ObjectStore.of(root, TeamRepository.open(repository))
    store.update()
    branch = f"kandev/{str(session.id).replace('-', '')[:12]}"
    run_git(repository, "branch", branch)
    archive = Archive.of(root, str(session.id), store)
    archive.adopt(branch)
    return archive


def test_archive_of_a_deleted_session_is_deleted_with_its_refs(
    repository: Path, session: TaskSession, tmp_path: Path
) -> None:
    keep(repository, session)
    archive = archive_of(session, repository, tmp_path / "data")
    delete_session(session)
    assert run_chore("recovery_refs").removed == 0
    assert archive.exists()
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert run_chore("recovery_refs").removed == 2
    assert not archive.exists()
    assert refs(repository) == []


def leave_workspace(session: TaskSession, root: Path) -> Path:
    """Create a workspace such as an agent may leave: a read-only directory, deep nesting, a link to elsewhere."""
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


def test_workspace_of_a_deleted_session_is_always_deleted(
    repository: Path, session: TaskSession, tmp_path: Path
) -> None:
    workspace = leave_workspace(session, tmp_path / "data")
    delete_session(session)
    assert run_chore("recovery_refs").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert run_chore("recovery_refs").removed == 1
    assert not workspace.exists()
    assert not list(workspace.parent.iterdir())
    assert repository.is_dir()


def test_workspace_with_a_live_process_is_kept(repository: Path, session: TaskSession, tmp_path: Path) -> None:
    workspace = leave_workspace(session, tmp_path / "data")
    execution = str(execution_of(session).id)
    delete_session(session)
    Leftover.objects.update(deleted_at=LONG_AGO)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={EXECUTION_MARKER: execution}) as living:
        assert (run_chore("recovery_refs").removed, run_chore("recovery_refs").kept) == (0, 1)
        assert workspace.exists()
        assert living.stdin
        living.stdin.close()
    assert run_chore("recovery_refs").removed == 1


def test_redundant_snapshot_is_also_deleted_from_the_archive(
    repository: Path, session: TaskSession, tmp_path: Path
) -> None:
    ref = keep(repository, session)
    archive = archive_of(session, repository, tmp_path / "data")
    assert ref in archive.tips()
    assert run_chore("recovery_refs").removed == 1
    assert list(archive.tips()) == [f"refs/heads/kandev/{str(session.id).replace('-', '')[:12]}"]
