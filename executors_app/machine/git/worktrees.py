"""Worktrees: one per session, on a branch of its own; both follow from the session's id. And seeds of workspaces.

Every call may be repeated after a crash at any point. The only thing ever deleted is an unfinished ``git worktree
add``: git marks it as locked with the reason *initializing*, and no agent has run in it. ``git worktree prune`` is
never used, because it would also remove worktrees of people whose disk is not mounted at the moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.machine.git import recovery_snapshots, snapshot_restore, worktree_trash
from executors_app.machine.git.git_directory import (
    BRANCH_PREFIX,
    linked_git_directory,
    list_records,
    read_git_file,
    read_head,
    revisions_for,
    worktree_of_record,
)
from executors_app.machine.git.rebuild_plan import RebuildPlan, RepositoryLookup, is_restorable_head, plan_rebuild
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.git.ref_locks import place_of_ref, remove_stale_lock, wait_for_lock
from executors_app.machine.git.repository_git import RepositoryGitFailed, common_directory, resolve_commit, run_git
from executors_app.machine.git.saved_submodules import SubmoduleRestorer
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.errors import RepositoryUnusable, WorkspaceGone, no_start_commit
from executors_app.wire.executions import WorkspaceState

_INITIALIZING: Final = "initializing"
_LOCK_SECONDS: Final = 120.0
_HALF_A_RECORD: Final = re.compile(r"failed to read .+/commondir")
"""What git reports while another ``git worktree add`` in the same repository is writing its record."""
_ATTEMPTS: Final = 20
_CHECKOUT_SECONDS: Final = 600.0
_PAUSE: Final = 0.05
"""Seconds between two attempts."""


@dataclass(frozen=True, slots=True)
class OwnedRepository:
    """A repository of the calling user, so its configuration may be applied."""

    path: Path
    common: Path

    @classmethod
    def open(cls, path: Path) -> OwnedRepository:
        """Open a repository; raises RepositoryUnusable, RepositoryGitFailed."""
        return cls(path, common_directory(path))

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a full ref or an id names; None if it names none."""
        return resolve_commit(self.path, revision)

    def text(self, *arguments: str) -> str:
        """Return the output of git; raises RepositoryGitFailed."""
        return run_git(self.path, *arguments)


@dataclass(frozen=True, slots=True)
class Worktree:
    """The path and branch of a worktree."""

    path: Path
    branch: str


def session_worktree(data_directory: Path, session_id: str) -> Worktree:
    """Return the path and branch that belong to a session."""
    return Worktree(data_directory / "worktrees" / session_id, f"kandev/{session_id.replace('-', '')[:12]}")


def session_refs(session_id: str, branch: str) -> tuple[str, str]:
    """Return the refs from which a session's worktree can be rebuilt: its branch and its newest snapshot."""
    return f"{BRANCH_PREFIX}{branch}", recovery_snapshots.session_recovery_ref(session_id)


def make_worktree(
    repository: Path, base: str, worktree: Worktree, *, existed: bool, owns_repository: bool = False
) -> str:
    """Create the worktree, rebuild it, or find it complete; return what a rebuilt one lacks, as sentences.

    ``existed``: it was complete once, so a new branch from ``base`` (empty: HEAD) would silently lose work.
    ``owns_repository``: the repository has no other users. Raises WorkspaceGone (with the reason), RepositoryUnusable,
    RepositoryGitFailed.
    """
    if _is_present(worktree.path):
        return ""
    worktree.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    making = _Making(OwnedRepository.open(repository), base, worktree, existed, owns_repository)
    with worktree_lock(worktree.path) as held:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return making.make(held)
            except RepositoryGitFailed as error:
                if attempt == _ATTEMPTS or not _HALF_A_RECORD.search(error.message):
                    raise
                time.sleep(_PAUSE)
    raise AssertionError("the last attempt returns or raises")


def worktree_state(worktree: Worktree, open_repository: Callable[[], RepositoryLookup]) -> tuple[WorkspaceState, str]:
    """Return whether the worktree exists or can be rebuilt, and the reason if not; changes nothing.

    ``open_repository`` may raise RepositoryUnusable. Temporary errors are raised.
    """
    if _is_present(worktree.path):
        return WorkspaceState.PRESENT, ""
    try:
        reason = _loss_reason(worktree, open_repository())
    except RepositoryUnusable as error:
        if not error.permanent:
            raise
        reason = f"The worktree {worktree.path} was deleted, and {_lowercase_first(error.message)}"
    if reason:
        return (WorkspaceState.GONE, reason)
    return (WorkspaceState.REBUILDABLE, "")


def _loss_reason(worktree: Worktree, repository: RepositoryLookup) -> str:
    """Return why a missing worktree cannot be rebuilt; empty if it can."""
    record = _find_record(repository.common, worktree.path)
    if record and (_is_unfinished(record) or _is_moved(record, worktree.path)):
        return ""
    own, session_id = f"{BRANCH_PREFIX}{worktree.branch}", worktree.path.name
    found = recovery_snapshots.find_session_recovery(repository.text, session_id)
    if record and is_restorable_head(repository, read_head(record), own, found):
        return ""
    if _is_occupied(worktree.path):
        return f"The directory {worktree.path} is no longer a worktree of its repository."
    plan = plan_rebuild(repository, worktree.branch, session_id, owns_repository=False)
    if plan:
        return ""
    return nothing_found(worktree)


def nothing_found(worktree: Worktree) -> str:
    """Return the sentence about a worktree of which neither the branch nor a snapshot was found.

    That nothing is there under a name does not prove that it was deleted.
    """
    return (
        f"The worktree {worktree.path} was deleted, and its branch {worktree.branch} was not found. It may have been "
        "deleted or renamed, and the repository has no snapshot of the session."
    )


@dataclass(frozen=True, slots=True)
class _Making:
    """The creation of one worktree; everything in it happens while the worktree's lock is held."""

    repository: OwnedRepository
    base: str
    worktree: Worktree
    existed: bool
    owns_repository: bool

    def make(self, held: int) -> str:
        """Do what ``make_worktree`` does; after an error, it may be called again."""
        path = self.worktree.path
        if _is_present(path):
            return ""  # created by another process while we waited for the lock
        if _bring_back(path) and _is_present(path):
            return ""
        record = _find_record(self.repository.common, path)
        if record and _is_moved(record, path):
            raise RepositoryUnusable(
                f"The worktree {path} was moved to {worktree_of_record(record)}. Move it back with git worktree move, "
                "then try again."
            )
        if record and _is_unfinished(record):
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(record)
            record = None
        own = f"{BRANCH_PREFIX}{self.worktree.branch}"
        found = recovery_snapshots.find_session_recovery(self.repository.text, path.name)
        if record and is_restorable_head(self.repository, read_head(record), own, found):
            is_lost = not _is_occupied(path)
            note = _restore_directory(self.repository, record, path, found, held)
            if is_lost:
                return _join(self._note_about_snapshot(found), note)
            return ""
        if _is_occupied(path):
            raise WorkspaceGone(f"The directory {path} is no longer a worktree of {self.repository.path}.")
        force: tuple[str, ...] = ()
        if record:
            force = ("--force", "--force")
        plan = plan_rebuild(
            self.repository, self.worktree.branch, path.name, self.base, owns_repository=self.owns_repository
        )
        if plan is None:
            self._add_new(force, held)
            return ""
        return self._add_planned(plan, force, held)

    def _add_new(self, force: Sequence[str], held: int) -> None:
        """Add a worktree on a new branch; if git fails, the branch is removed again."""
        if self.existed:
            raise WorkspaceGone(nothing_found(self.worktree))
        path, branch = self.worktree.path, self.worktree.branch
        start = resolve_start_commit(self.repository.path, self.base)
        self._remove_stale_lock(f"{BRANCH_PREFIX}{branch}")
        try:
            self._git("worktree", "add", *force, "--no-track", "-b", branch, str(path), start, hold=held)
        except RepositoryGitFailed:
            self._remove_junk(held)
            with contextlib.suppress(RepositoryGitFailed):
                self._git("update-ref", "--no-deref", "-d", f"{BRANCH_PREFIX}{branch}", start, hold=held)
            raise

    def _add_planned(self, plan: RebuildPlan, force: Sequence[str], held: int) -> str:
        """Add a worktree where the session's HEAD was, and restore its uncommitted work."""
        path = self.worktree.path
        work = self.repository.text, plan.snapshot, plan.commit
        recovery, set_aside = recovery_snapshots.uncommitted_work_on(*work)
        names_branch = _is_usable_name(plan)
        note = _join(set_aside, plan.note)
        # Marked as unfinished, the way git does it, until branch and uncommitted work are restored too.
        unfinished = bool(recovery) or not names_branch
        lock: tuple[str, ...] = ()
        if unfinished:
            lock = ("--lock", "--reason", _INITIALIZING)
        if plan.creates_branch:
            self._remove_stale_lock(plan.ref)
        try:
            self._git("worktree", "add", *force, *lock, *_checkout_of(plan, path), hold=held)
            if not names_branch:
                self._attach_head(plan, held)
            if recovery:
                snapshot_restore.restore_uncommitted_work(path, recovery, held)
                note = _join(note, self._restore_submodules(recovery, held))
            if unfinished:
                self._git("worktree", "unlock", str(path), hold=held)
        except RepositoryGitFailed:
            self._remove_junk(held)
            raise
        return _join(self._note_about_snapshot(plan.snapshot), note)  # first: a name in the plan's note can be long

    def _note_about_snapshot(self, found: RecoverySnapshot | None) -> str:
        """Return what no snapshot has, or that there is none; nothing for a worktree that is made for the first time.

        A repository without other users was filled just now, so that ``existed`` says nothing about its worktree.
        """
        if found:
            if found.converts_line_ends:
                line_ends = recovery_snapshots.LINE_ENDS_NOTE
            else:
                line_ends = ""
            return _join(recovery_snapshots.IGNORED_FILES_NOTE, line_ends)
        if self.existed and not self.owns_repository:
            return recovery_snapshots.NO_SNAPSHOT_NOTE
        return ""

    def _remove_stale_lock(self, ref: str) -> None:
        """Let ``git worktree add`` create a branch whose lock file a killed git has left behind."""
        if place := place_of_ref(self.repository.path, ref):
            remove_stale_lock(place)

    def _restore_submodules(self, recovery: RecoverySnapshot, held: int) -> str:
        return restore_submodules(self.repository, self.worktree.path, recovery, held)

    def _attach_head(self, plan: RebuildPlan, held: int) -> None:
        """Point the HEAD of a worktree that was added without a branch at the plan's branch."""
        if plan.creates_branch:
            self._git("update-ref", "--no-deref", plan.ref, plan.commit, "", hold=held)
        self._git("symbolic-ref", "HEAD", plan.ref, hold=held, directory=self.worktree.path)
        if not plan.commit:
            self._git("read-tree", "--empty", hold=held, directory=self.worktree.path)

    def _remove_junk(self, held: int) -> None:
        """Remove what a failed ``git worktree add`` has left; no agent has run in it.

        git removes it itself unless it was killed, or the checkout had finished.
        """
        record = _find_record(self.repository.common, self.worktree.path)
        if record and (_is_unfinished(record) or not _is_occupied(self.worktree.path)):
            shutil.rmtree(self.worktree.path, ignore_errors=True)
            shutil.rmtree(record, ignore_errors=True)

    def _git(self, *arguments: str, hold: int, directory: Path | None = None) -> None:
        run_git(directory or self.repository.path, *arguments, timeout=_CHECKOUT_SECONDS, hold=(hold,))


def _is_usable_name(plan: RebuildPlan) -> bool:
    """Whether ``git worktree add`` can check out what the plan names.

    Not a branch without commits before git 2.42, nor one whose short name is an option or names HEAD.
    """
    if not plan.ref:
        return True
    branch = plan.ref.removeprefix(BRANCH_PREFIX)
    return bool(plan.commit) and not branch.startswith("-") and branch not in ("HEAD", "@")


def _checkout_of(plan: RebuildPlan, path: Path) -> list[str]:
    """Return the arguments of ``git worktree add`` for a plan.

    A branch is passed by its short name, because git detaches HEAD for a full one; it prefers a branch to a tag there.
    """
    if not plan.commit:
        assert plan.snapshot is not None, "only a snapshot can say so"  # noqa: S101
        return ["--no-checkout", "--detach", str(path), plan.snapshot.commit]
    if not plan.ref or not _is_usable_name(plan):
        return ["--detach", str(path), plan.commit]
    branch = plan.ref.removeprefix(BRANCH_PREFIX)
    if plan.creates_branch:
        return ["--no-track", "-b", branch, str(path), plan.commit]
    return [str(path), branch]


def resolve_start_commit(repository: Path, base: str) -> str:
    """Return the commit that a new branch starts from; raises RepositoryUnusable."""
    for revision in revisions_for(base or "HEAD"):
        if commit := resolve_commit(repository, revision):
            return commit
    raise no_start_commit(repository, base)


def _restore_directory(
    repository: OwnedRepository, record: Path, path: Path, found: RecoverySnapshot | None, held: int
) -> str:
    """Restore a deleted directory from the record that git still has: HEAD, and the index with all staged work.

    Unstaged work comes from the last snapshot. If only the pointer to the record (``.git``) is missing, nothing else is
    changed. Returns what could not be restored, as sentences.
    """
    if _is_occupied(path):
        if (path / ".git").is_dir():
            raise RepositoryUnusable(
                f"{path / '.git'} is a repository of its own, where a worktree of {repository.path} is expected. "
                "Move it elsewhere, then try again."
            )
        pointer = path.with_name(f".{path.name}.pointer")
        pointer.write_text(f"gitdir: {record}\n")
        pointer.rename(path / ".git")
        return ""
    temporary = path.with_name(f".{path.name}.draft")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    bare = ("--git-dir", str(record), "--work-tree", str(temporary))
    head = repository.commit_of(read_head(record).ref or read_head(record).commit) or ""
    recovery, set_aside = recovery_snapshots.uncommitted_work_on(repository.text, found, head)
    run = partial(run_git, temporary, *bare, timeout=_CHECKOUT_SECONDS, hold=(held,))
    if not _has_readable_index(run, record / "index"):
        if recovery:
            run("read-tree", recovery.index)
        elif head:
            run("read-tree", "HEAD")
        else:
            run("read-tree", "--empty")
    run("checkout-index", "--all", "--quiet")
    if recovery:
        snapshot_restore.overlay_uncommitted_work(run, temporary, recovery, snapshot_restore.index_beside(temporary))
    (temporary / ".git").write_text(f"gitdir: {record}\n")
    # What submodules contain has a HEAD of its own, whatever happened to the one of the worktree.
    if found:
        note = restore_submodules(repository, temporary, found, held, draft=True)
    else:
        note = ""
    # The rename comes last: a crash before it leaves only a draft, which the next call deletes.
    (record / "gitdir").write_text(f"{path.parent.resolve() / path.name / '.git'}\n")
    temporary.rename(path)
    return _join(set_aside, note)


def _has_readable_index(run: Callable[..., str], index: Path) -> bool:
    """Whether git can read an index; a damaged one is renamed, so that it blocks nothing."""
    if not index.exists():
        return False
    try:
        run("ls-files", "--unmerged", "-z")
    except RepositoryGitFailed as error:
        if error.details.get("failure") != "damaged_index":
            raise
        index.rename(index.with_name(f"index.damaged-{time.time_ns()}"))
        return False
    return True


def restore_submodules(
    repository: OwnedRepository, path: Path, snapshot: RecoverySnapshot, held: int, *, draft: bool = False
) -> str:
    """Restore the work inside submodules; return what could not be, as sentences, and keep the snapshot for that."""
    git = WorkspaceGit(path, {}, hold=(held,))
    try:
        problems = SubmoduleRestorer(git, snapshot, rebuilt=True, draft=draft).restore()
    finally:
        git.close()
    if not problems:
        return ""
    aside = recovery_snapshots.set_recovery_aside(repository.text, snapshot)
    sentences = " ".join(f"{problem.rstrip('.')}." for problem in problems)
    return f"{sentences} The snapshot is kept at {aside}."


def _bring_back(path: Path) -> bool:
    """Bring a worktree back from the trash, if it is there; raises RepositoryUnusable if its place is taken."""
    if worktree_trash.bring_back(path):
        return True
    if worktree_trash.is_in_trash(path):
        # What is here now is not the worktree, whose record in git it would take over.
        raise RepositoryUnusable(
            f"The worktree {path} is in the trash ({worktree_trash.trash_of(path)}), and something else was put in "
            "its place. Move that elsewhere, then try again."
        )
    return False


def _is_present(path: Path) -> bool:
    """Whether a complete worktree exists; reads two small files and runs no git."""
    record = linked_git_directory(path)
    return record is not None and (record / "HEAD").is_file() and not _is_unfinished(record)


def _is_unfinished(record: Path) -> bool:
    return (read_git_file(record / "locked") or b"").strip() == _INITIALIZING.encode()


def _is_moved(record: Path, path: Path) -> bool:
    """Whether a record belongs to a worktree that exists elsewhere, because someone moved it there."""
    place = worktree_of_record(record)
    if place is None or _is_same_place(place, path):
        return False
    return linked_git_directory(place) == record


def _find_record(common: Path, path: Path) -> Path | None:
    """Find git's record of the worktree at ``path``; git names it after the directory, and keeps that name.

    A record of that name whose directory was moved and then deleted is the same worktree's: its name is a session's id.
    """
    records = sorted(list_records(common), key=lambda record: record.name != path.name)
    for record in records:
        place = worktree_of_record(record)
        if place is not None and _is_same_place(place, path):
            return record
    named = common / "worktrees" / path.name
    if named.is_dir() and worktree_of_record(named) is not None:
        return named
    return None


def _is_same_place(one: Path, other: Path) -> bool:
    """Whether two paths name the same entry, whether or not it exists, and whatever links lead to its directory."""
    return one.name == other.name and one.parent.resolve() == other.parent.resolve()


def _is_occupied(path: Path) -> bool:
    """Whether something exists at the worktree's path that must not be deleted."""
    try:
        return any(path.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextmanager
def worktree_lock(path: Path, seconds: float = _LOCK_SECONDS) -> Iterator[int]:
    """Hold the lock for ``path`` while something is created there; yield its file descriptor.

    Pass the descriptor to git as ``hold``: git then keeps the lock if the process that took it is killed. Raises
    RepositoryGitFailed if another process keeps the lock for that time.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not wait_for_lock(lock, seconds):
            raise RepositoryGitFailed(f"Another process has been preparing {path} for more than {seconds:g} s.")
        yield lock
    finally:
        os.close(lock)


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _lowercase_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
