"""Worktrees of closed sessions are removed if that is switched on, and only if nothing is lost with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from executors_app import cleanup
from executors_app.agentctl.workspace.snapshots import take_snapshot
from executors_app.agentctl.workspace.working_tree import SnapshotLimits
from executors_app.machine.git import worktree_trash, worktrees
from executors_app.machine.git.worktree_trash import trash_of
from executors_app.machine.git.worktrees import Worktree
from executors_app.machine.process import identity, path_users
from executors_app.repositories import unsaved_work
from executors_app.wire.errors import RepositoryUnusable
from sessions_app.board.services.tasks import delete_session
from sessions_app.maintenance import chore_run
from sessions_app.maintenance import worktrees as chore
from sessions_app.models import Leftover, RemovedWorktree, Repository, Task, TaskSession
from tests.executors.repositories import make_repository, run_git
from tests.maintenance.chores import LONG_AGO, ended_session, run_chore, with_journal
from tests.supervisor.rows import change, execution_of
from tests.workspace.trees import add_submodule, git_of

pytestmark = pytest.mark.django_db
DAY = 86_400.0


def own_children() -> list[int]:
    """Return the processes that this test has started."""
    found = []
    for pid in identity.list_pids():
        status = identity.read_stat(pid)
        if status is not None and status.parent == os.getpid():
            found.append(pid)
    return found


@pytest.fixture(autouse=True)
def data(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    settings.KANDEV_WORKTREE_RETENTION = DAY
    settings.KANDEV_DATA_DIR.mkdir(mode=0o700)
    # Whatever else runs on the machine, and however slow that makes it, changes no result here.
    monkeypatch.setattr(path_users, "list_pids", own_children)
    monkeypatch.setattr(chore_run, "TIME_BUDGET", 600.0)
    monkeypatch.setattr(chore, "DELETE_SECONDS", 600.0)
    monkeypatch.setattr(unsaved_work, "SECONDS", 600.0)
    return tmp_path / "data"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def done_session(data: Path, repository: Path) -> tuple[TaskSession, Worktree]:
    """Return a session whose task was done long ago, and its worktree."""
    session, made = closed_and_done(data, repository)
    worktrees.make_worktree(repository, "", made, existed=False)
    return session, made


def closed_and_done(data: Path, repository: Path) -> tuple[TaskSession, Worktree]:
    """Return such a session, and where its worktree will be."""
    session = ended_session()
    row, _ = Repository.objects.get_or_create(team=session.task.team, path=str(repository), defaults={"name": "real"})
    end = {"state": "DONE", "entered_state": "DONE", "entered_at": LONG_AGO, "repository": row}
    Task.objects.filter(id=session.task_id).update(**end)
    change(execution_of(session), state={"process": identity.identify_self().to_json()}, updated_at=LONG_AGO)
    made = worktrees.session_worktree(data, str(session.id))
    placed = {"worktree_path": str(made.path), "worktree_branch": made.branch, "worktree_id": str(session.id)}
    return change(session, updated_at=LONG_AGO, **placed), made


def take(session: TaskSession, made: Worktree) -> None:
    """Take a snapshot, as agentctl does."""
    git = git_of(made.path)
    take_snapshot(git, str(session.id), made.path.parent / "copy", "turn_end", SnapshotLimits())
    git.close()


def commit(made: Worktree, name: str = "work") -> str:
    (made.path / name).write_text("of the agent\n")
    run_git(made.path, "add", name)
    run_git(made.path, "commit", "--quiet", "-m", name)
    return run_git(made.path, "rev-parse", "HEAD")


def reason(made: Worktree) -> str:
    """Run the chore, and return why it has kept a worktree."""
    done = run_chore("worktrees")
    assert made.path.is_dir() and (done.failed, done.removed, done.kept) == (False, 0, 1), done.said
    return done.reasons[f"worktree {made.path.name}"]


def state_of(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file."""
    found = {}
    for path in sorted(root.rglob("*")):
        content = b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


def test_nothing_is_removed_unless_it_is_switched_on(data: Path, repository: Path, settings: Any) -> None:
    settings.KANDEV_WORKTREE_RETENTION = 0.0
    _, made = done_session(data, repository)
    assert run_chore("worktrees").removed == 0
    assert made.path.is_dir()


def test_worktree_moves_to_the_trash_and_comes_back_as_it_was(data: Path, repository: Path) -> None:
    session, made = done_session(data, repository)
    commit(made)
    (made.path / "README").write_text("changed\n")
    (made.path / "staged").write_text("staged\n")
    run_git(made.path, "add", "staged")
    (made.path / "link").symlink_to("nowhere")
    (made.path / "tool").write_text("#!/bin/sh\n")
    (made.path / "tool").chmod(0o755)
    take(session, made)
    before, status = state_of(made.path), run_git(made.path, "status", "--porcelain")
    assert run_chore("worktrees", dry_run=True).removed == 1
    assert made.path.is_dir()
    assert run_chore("worktrees").removed == 1
    assert not made.path.exists() and state_of(trash_of(made.path)) == before
    run_git(repository, "worktree", "prune", "--expire=now")

    out = StringIO()
    call_command("removed_worktrees", "--json", stdout=out)
    assert [row["session_id"] for row in json.loads(out.getvalue())] == [str(session.id)]
    call_command("removed_worktrees", bring_back=[str(session.id)], stdout=out)

    assert state_of(made.path) == before
    assert run_git(made.path, "status", "--porcelain") == status
    assert RemovedWorktree.objects.get().brought_back_at
    with pytest.raises(CommandError, match="has no worktree"):
        call_command("removed_worktrees", bring_back=[str(session.id)], stdout=out)


def test_started_session_gets_its_worktree_back_from_the_trash(data: Path, repository: Path) -> None:
    _, made = done_session(data, repository)
    (made.path / "node_modules").mkdir()
    (made.path / "node_modules" / "made").write_text("again")
    (made.path / ".gitignore").write_text("node_modules\n")
    run_git(made.path, "add", ".gitignore")
    run_git(made.path, "commit", "--quiet", "-m", "ignore")
    run_chore("worktrees")
    assert not made.path.exists()
    assert worktrees.make_worktree(repository, "", made, existed=True) == ""
    assert (made.path / "node_modules" / "made").read_text() == "again"
    assert "locked" not in run_git(repository, "worktree", "list", "--porcelain")
    assert run_chore("worktrees").removed == 1
    assert sorted(bool(row.brought_back_at) for row in RemovedWorktree.objects.all()) == [False, True]


def empty_trash(settings: Any) -> None:
    settings.KANDEV_WORKTREE_TRASH = DAY
    RemovedWorktree.objects.update(moved_at=LONG_AGO)
    run_chore("worktrees")


def test_removed_worktree_is_made_again_from_branch_and_snapshot(data: Path, repository: Path, settings: Any) -> None:
    session, made = done_session(data, repository)
    tip = commit(made)
    (made.path / "new").write_text("uncommitted\n")
    take(session, made)
    run_chore("worktrees")
    empty_trash(settings)
    assert not any((data / "trash").iterdir())
    assert RemovedWorktree.objects.get().removed_at
    assert str(made.path) not in run_git(repository, "worktree", "list", "--porcelain")
    assert run_git(repository, "rev-parse", made.branch) == tip

    worktrees.make_worktree(repository, "", made, existed=True)
    assert run_git(made.path, "rev-parse", "HEAD") == tip
    assert (made.path / "new").read_text() == "uncommitted\n"


def test_trash_that_was_changed_is_kept(data: Path, repository: Path, settings: Any) -> None:
    _, made = done_session(data, repository)
    run_chore("worktrees")
    (trash_of(made.path) / "late").write_text("written by somebody\n")
    empty_trash(settings)
    assert (trash_of(made.path) / "late").exists()
    assert "'late' is ignored by git, or newer" in RemovedWorktree.objects.get().kept_because


def ignored_file(made: Worktree, repository: Path) -> None:
    (made.path / ".gitignore").write_text("*.env\n")
    run_git(made.path, "add", ".gitignore")
    run_git(made.path, "commit", "--quiet", "-m", "ignore")
    (made.path / "secrets.env").write_text("the only copy\n")


def untracked_file(made: Worktree, repository: Path) -> None:
    (made.path / "draft").write_text("the only copy\n")


def changed_file(made: Worktree, repository: Path) -> None:
    (made.path / "README").write_text("changed\n")


def deleted_file(made: Worktree, repository: Path) -> None:
    (made.path / "README").unlink()


def staged_file(made: Worktree, repository: Path) -> None:
    (made.path / "staged").write_text("staged\n")
    run_git(made.path, "add", "staged")
    (made.path / "staged").unlink()


def stash(made: Worktree, repository: Path) -> None:
    changed_file(made, repository)
    run_git(made.path, "stash", "--quiet")


def left_commit(made: Worktree, repository: Path) -> None:
    commit(made)
    run_git(made.path, "reset", "--quiet", "--hard", "HEAD~1")


def detached_commit(made: Worktree, repository: Path) -> None:
    run_git(made.path, "checkout", "--quiet", "--detach")
    commit(made)


def nested_repository(made: Worktree, repository: Path) -> None:
    (made.path / "nested").mkdir()
    run_git(made.path / "nested", "init", "--quiet")


def submodule(made: Worktree, repository: Path) -> None:
    add_submodule(made.path, make_repository(repository.parent / "library"))


def locked(made: Worktree, repository: Path) -> None:
    run_git(repository, "worktree", "lock", str(made.path))


def rebase(made: Worktree, repository: Path) -> None:
    (Path(run_git(made.path, "rev-parse", "--git-dir")) / "rebase-merge").mkdir()


def pipe(made: Worktree, repository: Path) -> None:
    os.mkfifo(made.path / "pipe")


def other_record(made: Worktree, repository: Path) -> None:
    (made.path / ".git").write_text(f"gitdir: {repository / '.git'}\n")


def git_directory_of(made: Worktree) -> Path:
    return Path(run_git(made.path, "rev-parse", "--absolute-git-dir"))


def autostash(made: Worktree, repository: Path) -> None:
    """A merge with --squash sets changes aside here, and names them nowhere else until it is committed."""
    changed_file(made, repository)
    set_aside = run_git(made.path, "stash", "create")
    run_git(made.path, "checkout", "--quiet", "README")
    (git_directory_of(made) / "MERGE_AUTOSTASH").write_text(f"{set_aside}\n")


def commit_before_a_reset(made: Worktree, repository: Path) -> None:
    left_commit(made, repository)
    (git_directory_of(made) / "logs" / "HEAD").unlink()


def killed_git(made: Worktree, repository: Path) -> None:
    (git_directory_of(made) / "index.lock").write_bytes(b"")


def lost_object(made: Worktree, repository: Path) -> None:
    content = run_git(made.path, "rev-parse", "HEAD:README")
    (repository / ".git" / "objects" / content[:2] / content[2:]).unlink()


UNSAVED: list[tuple[Callable[[Worktree, Path], None], str]] = [
    (ignored_file, "'secrets.env' is ignored by git"),
    (untracked_file, "'draft' is ignored by git, or newer"),
    (changed_file, "'README' differs from the last snapshot"),
    (deleted_file, "'README' was deleted"),
    (staged_file, "changes are staged"),
    (stash, "the repository has a stash of it"),
    (left_commit, "commits that were made in it are on no branch"),
    (detached_commit, "commits that were made in it are on no branch"),
    (nested_repository, "another repository in 'nested'"),
    (submodule, "it has submodules"),
    (locked, "it is locked"),
    (rebase, "git rebase is in progress"),
    (autostash, "git's record of it has 'MERGE_AUTOSTASH'"),
    (killed_git, "git's record of it has 'index.lock'"),
    (commit_before_a_reset, "commits that were made in it are on no branch"),
    (lost_object, "it lacks the content of files"),
    (pipe, "'pipe' is ignored by git"),
    (other_record, "not a worktree of its task's repository"),
]


@pytest.mark.parametrize(("spoil", "why"), UNSAVED, ids=[spoil.__name__ for spoil, _ in UNSAVED])
def test_unsaved_work_keeps_a_worktree(
    data: Path, repository: Path, spoil: Callable[[Worktree, Path], None], why: str
) -> None:
    _, made = done_session(data, repository)
    spoil(made, repository)
    before = state_of(made.path)
    assert why in reason(made)
    assert state_of(made.path) == before


def test_open_editor_keeps_a_worktree(data: Path, repository: Path) -> None:
    _, made = done_session(data, repository)
    program = "import sys; sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], cwd=made.path, **pipes) as editor:  # type: ignore[call-overload]
        assert editor.stdout.read(1) == b"x"
        assert "a process is in it" in reason(made)
        editor.communicate(b"")
    with (made.path / "README").open("rb") as inherited:
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, pass_fds=[inherited.fileno()], **pipes) as editor:  # type: ignore[call-overload]
            assert editor.stdout.read(1) == b"x"
            assert "has a file of it open" in reason(made)
            editor.communicate(b"")
    assert run_chore("worktrees").removed == 1


def test_process_that_cannot_be_examined_keeps_all_worktrees(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = done_session(data, repository)

    def refuse(pid: int) -> set[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(path_users, "_paths_of", refuse)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        done = run_chore("worktrees")
        process.communicate(b"\n")
    assert (done.removed, made.path.is_dir()) == (0, True)
    assert "cannot be examined" in done.said[0]


def test_processes_of_another_place_keep_a_worktree(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made = done_session(data, repository)
    monkeypatch.setattr("executors_app.machine.process.path_users.sees_whole_machine", lambda: False)
    elsewhere = {**identity.identify_self().to_json(), "pid_namespace": "pid:[1]"}
    change(execution_of(session), state={"process": elsewhere}, updated_at=LONG_AGO)
    assert "not every process of its machine can be seen" in reason(made)


def test_worktree_of_an_open_task_is_not_looked_at(data: Path, repository: Path) -> None:
    session, made = done_session(data, repository)
    Task.objects.filter(id=session.task_id).update(state="IN_PROGRESS", entered_state="IN_PROGRESS")
    done = run_chore("worktrees")
    assert (done.removed, done.kept) == (0, 0)
    assert made.path.is_dir()


def test_worktree_in_use_by_an_open_session_is_kept(data: Path, repository: Path) -> None:
    session, made = done_session(data, repository)
    ended_session(shares_worktree_of=session)
    assert run_chore("worktrees").removed == 0
    assert made.path.is_dir()


def test_link_in_place_of_a_worktree_is_not_followed(data: Path, repository: Path, tmp_path: Path) -> None:
    _, made = done_session(data, repository)
    made.path.rename(tmp_path / "elsewhere")
    made.path.symlink_to(tmp_path / "elsewhere")
    assert "not a directory of its own" in reason(made)


def test_worktree_of_a_deleted_session_is_removed(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made = done_session(data, repository)
    monkeypatch.setattr("executors_app.machine.process.path_users.sees_whole_machine", lambda: True)
    delete_session(session)
    assert run_chore("worktrees").removed == 0
    Leftover.objects.update(deleted_at=LONG_AGO)
    assert run_chore("worktrees").removed == 1
    assert not made.path.exists()


def test_worktree_of_an_unknown_session_is_not_touched(data: Path, repository: Path) -> None:
    """A database restored from an older copy does not know the session."""
    session, made = done_session(data, repository)
    session.delete()
    assert run_chore("worktrees").removed == 0
    assert made.path.is_dir()


def copied(made: Worktree, repository: Path, copy: Worktree) -> None:
    """Make a worktree like another one, as git does but without calling it; its branch is made later."""
    record = repository / ".git" / "worktrees" / copy.path.name
    shutil.copytree(git_directory_of(made), record)
    shutil.copytree(made.path, copy.path)
    (record / "HEAD").write_text(f"ref: refs/heads/{copy.branch}\n")
    (record / "gitdir").write_text(f"{copy.path}/.git\n")
    (copy.path / ".git").write_text(f"gitdir: {record}\n")


def leave_state(session: TaskSession) -> None:
    """Leave what the agentctl of a session does whose machine lost power: its reserve is still on the disk."""
    place = with_journal(session)
    change(execution_of(session), updated_at=LONG_AGO)
    (place / "token").write_text("secret")
    (place / "agentctl.log").write_text("started\n")
    with (place / "journal" / "reserve").open("wb") as reserve:
        os.posix_fallocate(reserve.fileno(), 0, 1 << 20)


def bytes_below(folder: Path) -> int:
    counted = subprocess.run(["du", "-s", "--block-size=1", folder], capture_output=True, text=True, check=True)
    return int(counted.stdout.split()[0])


def test_done_sessions_leave_little_beside_the_database(data: Path, repository: Path, settings: Any) -> None:
    """Forty sessions; four share each worktree, as those of a workflow do, because nothing at all is left of one."""
    session, made = done_session(data, repository)
    (made.path / "large").write_bytes(os.urandom(400_000))
    run_git(made.path, "add", "large")
    run_git(made.path, "commit", "--quiet", "-m", "change")
    tip = run_git(made.path, "rev-parse", "HEAD")
    leave_state(session)
    branches = []
    for number in range(1, 40):
        owner, (session, copy) = session, closed_and_done(data, repository)
        leave_state(session)
        if number % 4:
            change(session, shares_worktree_of_id=owner.worktree_owner_id, updated_at=LONG_AGO)
        else:
            copied(made, repository, copy)
            branches.append(f"create refs/heads/{copy.branch} {tip}\n")
    (repository / "branches").write_text("".join(branches))
    run_git(repository, "update-ref", "--stdin", stdin=repository / "branches")
    assert bytes_below(data) > 40 * 1_000_000

    assert run_chore("journals").removed == 40
    assert run_chore("worktrees").removed == 10
    empty_trash(settings)

    assert RemovedWorktree.objects.exclude(removed_at=None).count() == 10
    for folder in (data / "worktrees", data / "trash", repository / ".git" / "worktrees"):
        assert not folder.exists() or [path.name for path in folder.iterdir() if path.is_dir()] == []
    assert bytes_below(data) < 40 * 50_000


def test_place_that_was_taken_meanwhile_is_not_made_a_worktree(data: Path, repository: Path, settings: Any) -> None:
    """An editor that still has a file open by its path saves it, and makes the directory anew for that."""
    session, made = done_session(data, repository)
    run_chore("worktrees")
    made.path.mkdir()
    (made.path / "README").write_text("saved by an editor\n")
    before = state_of(trash_of(made.path))
    with pytest.raises(RepositoryUnusable, match=r"is in the trash .*Move that elsewhere"):
        worktrees.make_worktree(repository, "", made, existed=True)
    with pytest.raises(CommandError, match="exists already"):
        call_command("removed_worktrees", bring_back=[str(session.id)])
    empty_trash(settings)
    assert state_of(made.path) == {"README": (0o100644, b"saved by an editor\n")}
    assert state_of(trash_of(made.path)) == before
    assert "something else is at" in RemovedWorktree.objects.get().kept_because

    (made.path / "README").unlink()
    assert worktrees.make_worktree(repository, "", made, existed=True) == ""
    assert run_git(made.path, "status", "--porcelain") == ""


def test_worktree_that_uses_the_record_again_keeps_it(data: Path, repository: Path, settings: Any) -> None:
    _, made = done_session(data, repository)
    run_chore("worktrees")
    made.path.mkdir()
    for name in (".git", "README"):
        (made.path / name).write_bytes((trash_of(made.path) / name).read_bytes())
    empty_trash(settings)
    assert run_git(made.path, "status", "--porcelain") == ""
    assert run_git(made.path, "rev-parse", "--abbrev-ref", "HEAD") == made.branch


def test_removal_that_was_killed_is_undone_by_the_next_run(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename and the commit of its row."""
    _, made = done_session(data, repository)
    before = state_of(made.path)
    move = worktree_trash.move_to_trash

    def move_and_die(worktree: Path, record: Path) -> None:
        move(worktree, record)
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(worktree_trash, "move_to_trash", move_and_die)
        run_chore("worktrees")
    assert trash_of(made.path).is_dir() and not RemovedWorktree.objects.exists()
    assert run_chore("worktrees", dry_run=True).removed == 0
    assert trash_of(made.path).is_dir()
    done = run_chore("worktrees")
    assert "because its removal was interrupted" in done.said[0]
    assert state_of(trash_of(made.path)) == before
    assert RemovedWorktree.objects.get().path == str(made.path)


def test_rest_that_cannot_be_deleted_keeps_no_other(
    data: Path, repository: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.KANDEV_WORKTREE_TRASH = DAY
    rests = [data / "trash" / f".going-{number}" for number in range(4)]
    for rest in rests:
        rest.mkdir(parents=True)
    remove = cleanup._remove_until
    monkeypatch.setattr(cleanup, "_remove_until", lambda going, until: going != rests[0] and remove(going, until))
    done = run_chore("worktrees")
    assert [rest.exists() for rest in rests] == [True, False, False, False]
    assert str(rests[0]) in done.said[0]


def test_too_many_open_files_keep_all_worktrees(data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = done_session(data, repository)
    monkeypatch.setattr(path_users, "SECONDS", -1.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        done = run_chore("worktrees")
        process.communicate(b"\n")
    assert (done.removed, made.path.is_dir()) == (0, True)
    assert "too many files open" in done.said[0]


def test_shell_that_was_opened_in_the_trash_during_the_comparison_keeps_it(
    data: Path, repository: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = done_session(data, repository)
    run_chore("worktrees")
    compare, shells = unsaved_work.check_worktree, []

    def compare_and_open(*arguments: Any) -> Any:
        found = compare(*arguments)
        command = [sys.executable, "-c", "print('x', flush=True); input()"]
        shell = subprocess.Popen(command, cwd=trash_of(made.path), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert shell.stdout and shell.stdout.read(1) == b"x"
        shells.append(shell)
        return found

    monkeypatch.setattr("sessions_app.maintenance.worktrees.check_worktree", compare_and_open)
    empty_trash(settings)
    for shell in shells:
        shell.communicate(b"\n")
    assert trash_of(made.path).is_dir()
    assert "a process is in it" in RemovedWorktree.objects.get().kept_because


def test_changes_that_were_undone_since_the_last_snapshot_keep_a_worktree(data: Path, repository: Path) -> None:
    """Made again from its snapshot, it would have them."""
    session, made = done_session(data, repository)
    (made.path / "README").write_text("changed\n")
    take(session, made)
    run_git(made.path, "checkout", "--quiet", "README")
    assert "'README' differs from the last snapshot" in reason(made)


def test_worktree_of_a_session_imported_without_its_owner_is_kept(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made = done_session(data, repository)
    monkeypatch.setattr("executors_app.machine.process.path_users.sees_whole_machine", lambda: True)
    delete_session(session)
    Leftover.objects.update(deleted_at=LONG_AGO)
    change(execution_of(ended_session()), worktree_path=str(made.path))
    assert run_chore("worktrees").removed == 0
    assert made.path.is_dir()


def make_tree(repository: Path, entries: str) -> str:
    command = ["git", "mktree"]
    done = subprocess.run(command, cwd=repository, input=entries, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_tree_with_very_many_deep_folders_is_not_compared(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent writes such a tree with few objects; its folders, written out, would fill the memory."""
    _, made = done_session(data, repository)
    monkeypatch.setattr(unsaved_work, "_TREE_BYTES", 100_000)
    tree = run_git(made.path, "write-tree")
    for _ in range(100):
        tree = make_tree(repository, f"040000 tree {tree}\ta\n")
    tree = make_tree(repository, "".join(f"040000 tree {tree}\t{number}\n" for number in range(50)))
    run_git(made.path, "reset", "--quiet", "--hard", run_git(made.path, "commit-tree", "-m", "deep", tree))
    assert "too many folders" in reason(made)


def test_repository_that_takes_too_long_is_left_after_one_call(
    data: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = done_session(data, repository)
    monkeypatch.setattr(unsaved_work, "SECONDS", -1.0)
    assert "too large to compare in time" in reason(made)
