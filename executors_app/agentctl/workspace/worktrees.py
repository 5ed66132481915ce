"""Worktrees: one for each session, on a branch of its own, both found by the session's id (rule 4).

Every call may come again after a crash anywhere. Nothing is deleted but what ``git worktree add``
itself left half-made: git marks that as locked with the reason *initializing* until it is complete,
and no agent was ever started in it. ``git worktree prune`` is never used: it would also forget
worktrees of people whose disk is not mounted at the moment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from executors_app.agentctl.workspace import recovery_snapshots
from executors_app.agentctl.workspace.repository_git import (
    RepositoryGitFailed,
    common_directory,
    resolve_commit,
    run_git,
)
from executors_app.domain import WorkspaceState
from executors_app.errors import RepositoryUnusable, WorkspaceGone

_HALF_MADE: Final = "initializing"
_LOCK_SECONDS: Final = 120.0


class CommitLookup(Protocol):
    """A repository as far as the state of a worktree depends on it."""

    @property
    def common(self) -> Path:
        """Where it keeps what its worktrees share."""
        ...

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or id names; None if it names none."""
        ...


@dataclass(frozen=True, slots=True)
class OwnedRepository:
    """A repository that belongs to whoever asks, so that its configuration may be read."""

    path: Path
    common: Path

    @classmethod
    def open(cls, path: Path) -> OwnedRepository:
        """Raises RepositoryUnusable, GitFailed."""
        return cls(path, common_directory(path))

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch, tag or id names; None if it names none."""
        return resolve_commit(self.path, revision)


@dataclass(frozen=True, slots=True)
class Worktree:
    """A place and a branch."""

    path: Path
    branch: str


def session_worktree(data_directory: Path, session_id: str) -> Worktree:
    """Where the worktree of a session belongs, and on which branch."""
    return Worktree(data_directory / "worktrees" / session_id, f"kandev/{session_id.replace('-', '')[:12]}")


def make_worktree(repository: Path, base: str, worktree: Worktree, *, existed: bool) -> None:
    """Make the worktree, rebuild it, or find it already there.

    ``existed``: it was complete once, so a new branch from ``base`` (empty: HEAD) would be a silent
    loss. Raises WorkspaceGone (with the reason), RepositoryUnusable, GitFailed.
    """
    if _is_present(worktree.path):
        return
    worktree.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    common = common_directory(repository)
    with worktree_lock(worktree.path) as held:
        if _is_present(worktree.path):
            return
        record = _find_record(common, worktree.path)
        if record and _is_half_made(record):
            shutil.rmtree(worktree.path, ignore_errors=True)
            shutil.rmtree(record)
            record = None
        if record and _names_commit(record, partial(resolve_commit, repository)):
            _restore_directory(repository, record, worktree.path, held)
        else:
            _add_worktree(repository, base, worktree, held, existed=existed)


def worktree_state(worktree: Worktree, open_repository: Callable[[], CommitLookup]) -> tuple[WorkspaceState, str]:
    """Whether the worktree can be had, and the precise reason if it cannot; changes nothing.

    ``open_repository`` may raise RepositoryUnusable. Errors for which trying again can help are raised.
    """
    if _is_present(worktree.path):
        return WorkspaceState.PRESENT, ""
    try:
        repository = open_repository()
        record = _find_record(repository.common, worktree.path)
        if record and (_is_half_made(record) or _names_commit(record, repository.commit_of)):
            return WorkspaceState.REBUILDABLE, ""
        if _occupied_error(worktree.path):
            return WorkspaceState.GONE, f"The directory {worktree.path} is no longer a worktree of its repository."
        if repository.commit_of(f"refs/heads/{worktree.branch}"):
            return WorkspaceState.REBUILDABLE, ""
    except RepositoryUnusable as error:
        if not error.permanent:
            raise
        return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and {_lowercase_first(error.message)}"
    return WorkspaceState.GONE, f"The worktree {worktree.path} and its branch {worktree.branch} were deleted."


def _add_worktree(repository: Path, base: str, worktree: Worktree, held: int, *, existed: bool) -> None:
    """Let git make it. ``--force`` covers a stale record of this very path, which has no usable HEAD."""
    if _occupied_error(worktree.path):
        raise WorkspaceGone(f"The directory {worktree.path} is no longer a worktree of {repository}.")
    force = ("--force", "--force") if _find_record(common_directory(repository), worktree.path) else ()
    head = resolve_commit(repository, f"refs/heads/{worktree.branch}")
    if head is None and existed:
        raise WorkspaceGone(f"The worktree {worktree.path} and its branch {worktree.branch} were deleted.")
    if head is None:
        target = ["--no-track", "-b", worktree.branch, str(worktree.path), resolve_start_commit(repository, base)]
        run_git(repository, "worktree", "add", *force, *target, timeout=600, hold=(held,))
        return
    kept = recovery_snapshots.find_uncommitted_work(repository, worktree.path.name, head)
    # Half-made, as git itself marks it, until the uncommitted work is back too.
    unfinished = ("--lock", "--reason", _HALF_MADE) if kept else ()
    target = [str(worktree.path), worktree.branch]
    run_git(repository, "worktree", "add", *force, *unfinished, *target, timeout=600, hold=(held,))
    if kept:
        recovery_snapshots.restore_uncommitted_work(worktree.path, kept, held)
        run_git(repository, "worktree", "unlock", str(worktree.path), hold=(held,))


def resolve_start_commit(repository: Path, base: str) -> str:
    """The commit that a new branch starts from."""
    for revision in (base, f"origin/{base}") if base else ("HEAD",):
        if commit := resolve_commit(repository, revision):
            return commit
    raise RepositoryUnusable(f"The repository {repository} has no commit at {base or 'HEAD'!r} to start from.")


def _restore_directory(repository: Path, record: Path, path: Path, held: int) -> None:
    """Bring back a deleted directory whose record git still has: its HEAD and index, staged work included.

    What was not staged comes from the last snapshot.

    Where only the pointer to the record is gone, nothing else is touched.
    """
    if _occupied_error(path):
        pointer = path.with_name(f".{path.name}.pointer")
        pointer.write_text(f"gitdir: {record}\n")
        pointer.rename(path / ".git")
        return
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    bare = ("--git-dir", str(record), "--work-tree", str(draft))
    if not (record / "index").exists():
        run_git(draft, *bare, "read-tree", "HEAD", hold=(held,))
    run_git(draft, *bare, "checkout-index", "--all", "--quiet", timeout=600, hold=(held,))
    if kept := recovery_snapshots.find_uncommitted_work(
        repository, path.name, run_git(draft, *bare, "rev-parse", "HEAD")
    ):
        recovery_snapshots.overlay_uncommitted_work(draft, bare, kept, held)
    (draft / ".git").write_text(f"gitdir: {record}\n")
    draft.rename(path)


def _is_present(path: Path) -> bool:
    """A complete worktree stands there; reads two small files and asks no git."""
    try:
        if not (path / ".git").is_file():  # reading a pipe would wait for ever
            return False
        pointer = (path / ".git").read_text()
    except (OSError, ValueError):
        return False
    record = Path(pointer.removeprefix("gitdir:").strip())
    return (record / "HEAD").is_file() and not _is_half_made(record)


def _is_half_made(record: Path) -> bool:
    try:
        return (record / "locked").is_file() and (record / "locked").read_text().strip() == _HALF_MADE
    except (OSError, ValueError):
        return False


def _names_commit(record: Path, commit_of: Callable[[str], str | None]) -> bool:
    """The record's HEAD still names a commit that the repository has."""
    try:
        head = (record / "HEAD").read_text().strip() if (record / "HEAD").is_file() else ""
    except (OSError, ValueError):
        return False
    return commit_of(head.removeprefix("ref:").strip()) is not None


def _find_record(common: Path, path: Path) -> Path | None:
    """What the repository remembers of the worktree at ``path``; git names it after the directory."""
    records = common / "worktrees"
    wanted = (path.parent.resolve() / path.name) / ".git"
    try:
        names = sorted(os.listdir(records), key=lambda name: name != path.name)  # noqa: PTH208  (names, not paths)
    except OSError:
        return None
    for name in names:
        try:
            if not (records / name / "gitdir").is_file():
                continue
            pointer = (records / name / "gitdir").read_text().strip()
        except (OSError, ValueError):
            continue
        if Path(pointer) in (wanted, path / ".git"):
            return records / name
    return None


def _occupied_error(path: Path) -> bool:
    """Something that is not ours to delete lies at the worktree's place."""
    try:
        return any(path.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextmanager
def worktree_lock(path: Path) -> Iterator[int]:
    """Hold the lock beside ``path`` while something is made there; yields its file descriptor.

    Pass the descriptor to git as ``hold``: git then keeps the lock if the process that took it is killed. Raises
    GitFailed if another process keeps the lock for two minutes.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _locked(lock):
            if time.monotonic() > deadline:
                raise RepositoryGitFailed(
                    f"Another process has been preparing {path} for more than {_LOCK_SECONDS:g} s."
                )
            time.sleep(0.02)
        yield lock
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lowercase_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
