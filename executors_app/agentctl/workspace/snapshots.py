"""Take and restore recovery snapshots of uncommitted work, as commits under a hidden ref.

Snapshots are taken before and after each turn, and before agentctl ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.journal import Journal
from executors_app.agentctl.workspace.changes import changes_between
from executors_app.agentctl.workspace.left_commits import RefMemory, keep_left_commits
from executors_app.agentctl.workspace.submodule_snapshots import SubmoduleSaver
from executors_app.agentctl.workspace.working_tree import DEFAULT_LIMITS, MAX_REASON, SnapshotLimits, WorkingTree
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import git_directory, recovery_snapshots
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.git.saved_submodules import SubmoduleRestorer
from executors_app.machine.git.submodules import Submodule
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.machine.process import spawning
from executors_app.wire.protocol import ApiError, Code, JournalKind, validation_error

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The new state of a recovery ref; also the answer of ``POST /snapshot``."""

    ref: str
    commit: str
    dirty: bool
    """Whether there are uncommitted changes."""
    changed: bool
    """Whether it differs from the previous snapshot."""
    left_out: list[str] = field(default_factory=list)
    """Paths of what is not in it."""
    left_out_reasons: list[str] = field(default_factory=list)
    """Why, for each of these paths."""
    branch: str = ""
    """The checked-out branch; empty for a detached HEAD."""
    head: str = ""
    """The checked-out commit; empty before the first."""
    ignored_count: int = 0
    """How many files and directories are not in it because ``.gitignore`` names them."""


@dataclass(frozen=True, slots=True)
class _Checkout:
    """What git's own files say about the working tree; a name in the output of ``git status`` can be ambiguous."""

    branch: str
    """The checked-out branch; empty if none is."""
    operation: str
    """What git is in the middle of; empty for nothing."""

    @classmethod
    def read(cls, root: Path) -> _Checkout:
        """Read the files of the working tree's git directory."""
        own = git_directory.git_directory_of(root)
        if own is None:
            return cls("", "")
        return cls(git_directory.read_head(own).branch, git_directory.operation_in_progress(own))

    @property
    def ref(self) -> str:
        """The full name of the branch; empty for a detached HEAD."""
        if self.branch:
            return f"{BRANCH_PREFIX}{self.branch}"
        return ""


@dataclass(frozen=True, slots=True)
class _Objects:
    """What the repository has: the tree of the commit, and the last snapshot with its trees."""

    earlier: RecoverySnapshot | None
    committed: str
    files: str = ""
    index: str = ""
    submodules: str = ""


class _SnapshotAttempt:
    """One snapshot in progress, on a copy of the index, so that the agent's own index never changes.

    Each git process takes milliseconds, and turns and restarts wait for snapshots, so there are few: three if nothing
    has changed since the last snapshot and nothing is uncommitted.
    """

    def __init__(self, git: WorkspaceGit, session_id: str, copy: Path, limits: SnapshotLimits, seen: RefMemory):
        self._git, self._session_id, self._limits, self._seen = git, session_id, limits, seen
        self._tree = WorkingTree(git, copy, limits, time.monotonic() + limits.seconds)
        self._copy = copy
        self._kept: Mapping[str, str] = {}
        """Commits beside the branch that were set aside with this snapshot."""
        self._ref = recovery_snapshots.session_recovery_ref(session_id)
        self._left_out: dict[bytes, str] = {}
        """What is not stored beside the files of the tree, with the reasons."""
        self._ignored_count = 0
        self.run, self.text = self._tree.run, self._tree.text

    def take(self, reason: str) -> Snapshot:
        """Write all files into the object store, and point the session's ref at them, unless it does already."""
        listing = self._tree.read_listing()
        status = self._tree.read_status(listing)
        self._ignored_count = status.ignored_count
        objects = self._read_objects(status.head)
        submodules = self._save_submodules(listing.submodules, objects.submodules)
        self._keep_left_commits(status.head)
        index, files = self._tree.write(status, objects.committed)
        return self._update_ref(reason, status.head, objects, (index, files, submodules))

    def close(self) -> None:
        """Remove the copied index."""
        self._tree.close()

    def _save_submodules(self, submodules: Sequence[Submodule], earlier: str) -> str:
        """Store the work inside submodules as one tree; a failure costs only that."""
        own = git_directory.git_directory_of(self._git.root)
        if not submodules and not (own is not None and (own / "modules").is_dir()):
            return ""
        saver = SubmoduleSaver(self._git, self._copy.with_name(f"{self._copy.name}.submodule"), self._limits, earlier)
        try:
            work = saver.save(submodules)
        except (GitError, OSError) as error:
            logger.warning("the submodules of %s could not be saved: %s", self._session_id, error)
            self._left_out[b"submodules"] = f"they cannot be saved: {str(error)[:MAX_REASON]}"
            return ""
        self._left_out |= work.left_out
        self._tree.left_out |= work.unreadable
        return work.tree

    def _read_objects(self, head: str) -> _Objects:
        """Read what git has; delete a damaged snapshot, which would block every later one."""
        # Before the first commit: the empty tree, which git hashes from empty input.
        if head:
            committed = f"{head}^{{tree}}"
        else:
            committed = self.text("hash-object", "-t", "tree", "--stdin")
        try:
            if found := recovery_snapshots.find_recovery(self.text, self._ref):
                commits = (found.commit, found.index, *([found.submodules] if found.submodules else []))
                trees = (committed, *(f"{commit}^{{tree}}" for commit in commits))
                return _Objects(found, *self.text("rev-parse", *trees).split("\n"))
        except GitError as error:
            if error.exit_code is None:  # a timeout, not a damaged snapshot
                raise
            logger.warning("the snapshot at %s is damaged and will be replaced: %s", self._ref, error)
        committed = self.text("rev-parse", committed)
        self._tree.as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", self._ref))
        return _Objects(None, committed)

    def _update_ref(self, reason: str, head: str, objects: _Objects, trees: tuple[str, str, str]) -> Snapshot:
        """``trees`` are those of index, working tree and submodules."""
        earlier, (index_tree, files, submodules_tree) = objects.earlier, trees
        is_uncommitted = {index_tree, files} != {objects.committed}
        dirty = is_uncommitted or bool(self._left_out or self._tree.left_out or submodules_tree)
        checkout = _Checkout.read(self._git.root)
        about = self._describe(checkout.branch, head)
        now = (checkout.ref, checkout.operation, head, *trees)
        before = (objects.index, objects.files, objects.submodules)
        if earlier and not self._kept and (earlier.ref, earlier.operation, earlier.head, *before) == now:
            return Snapshot(self._ref, earlier.commit, dirty, changed=False, **about)
        if earlier and earlier.head and earlier.head != head and earlier.ref != checkout.ref:
            self._keep_left_branch(earlier, head)
        index = self._commit(index_tree, [head], f"Index of {self._session_id}")
        if submodules_tree:
            submodules = self._commit(submodules_tree, [], f"Submodules of {self._session_id}")
        else:
            submodules = ""
        place = (checkout.ref, checkout.operation)
        converted = self._tree.converts_line_ends
        recovery = RecoverySnapshot("", head, index, self._session_id, *place, submodules, converted)
        message = recovery_snapshots.recovery_message(recovery, reason, checkout.branch)
        # Names them, so that this is another commit than the last snapshot, and is transferred with them.
        message += "".join(f"Kandev-Left: {commit}\n" for commit in self._kept)
        commit = self._commit(files, [head, index, submodules], message)
        # Only if the ref still names the earlier snapshot: sessions that share a worktree share the ref, too.
        try:
            self.text("update-ref", self._ref, commit, earlier.commit if earlier else "")
        except GitError:
            if not self._was_moved(earlier):
                raise
            return self._update_ref(reason, head, self._read_objects(head), trees)
        return Snapshot(self._ref, commit, dirty, changed=True, **about)

    def _describe(self, branch: str, head: str) -> dict[str, Any]:
        """Return the fields of ``Snapshot`` about HEAD and what is left out."""
        left_out = sorted({**self._tree.left_out, **self._left_out}.items())
        return {
            "left_out": [path.decode("utf-8", "replace") for path, _ in left_out],
            "left_out_reasons": [why for _, why in left_out],
            "branch": os.fsencode(branch).decode("utf-8", "replace"),
            "head": head,
            "ignored_count": self._ignored_count,
        }

    def _keep_left_commits(self, head: str) -> None:
        """Set aside what the agent has committed beside the branch; a failure costs only that."""
        own = git_directory.git_directory_of(self._git.root)
        if own is None:
            return
        try:
            found = keep_left_commits(self.run, own, head, self._session_id, self._seen)
        except GitError as error:
            logger.warning("commits beside the branch of %s could not be kept: %s", self._session_id, error)
            self._left_out[b"commits on other branches"] = f"git cannot list them: {error.message[:MAX_REASON]}"
            return
        self._kept = found.kept
        self._left_out |= found.left_out

    def _keep_left_branch(self, earlier: RecoverySnapshot, head: str) -> None:
        """Set the earlier snapshot aside if the agent went to a branch without its commits.

        The recovery ref is what holds those commits for the archive, and it moves on now.
        """
        if earlier.session_id != self._session_id:
            return
        contained = ("merge-base", "--is-ancestor", earlier.head, head)
        if not head or self.run(*contained, good=(0, 1, 128)).exit_code:
            recovery_snapshots.set_recovery_aside(self.text, earlier)

    def _commit(self, tree: str, parents: list[str], message: str) -> str:
        """Create a commit without a branch."""
        options = [word for parent in parents if parent for word in ("-p", parent)]
        return self.run("commit-tree", tree, *options, "-m", message, environment=recovery_snapshots.IDENTITY).text

    def _was_moved(self, earlier: RecoverySnapshot | None) -> bool:
        """Whether another session in the same worktree has updated the ref in the meantime."""
        now = self.run("rev-parse", "--verify", "--quiet", self._ref, good=(0, 1)).text
        return now not in ("", earlier.commit if earlier else "")


def take_snapshot(
    git: WorkspaceGit,
    session_id: str,
    copy: Path,
    reason: str,
    limits: SnapshotLimits = DEFAULT_LIMITS,
    *,
    seen: RefMemory | None = None,
) -> Snapshot:
    """Update the session's recovery ref; raises GitError, OSError.

    ``copy`` is a path for the copied index; ``seen`` is what the last snapshot of this process has seen.
    """
    attempt = _SnapshotAttempt(git, session_id, copy, limits, seen or RefMemory())
    try:
        return attempt.take(reason)
    finally:
        attempt.close()


_NO_REPOSITORY: Final = (
    "The workspace is no longer a git repository: .git is missing. No snapshots are taken until it is back, so what "
    "changes from here on is lost with the directory."
)
_REPLACED_REPOSITORY: Final = (
    "The workspace's .git was replaced by a repository inside the directory. Snapshots are stored there from here "
    "on, so they are lost with the directory."
)
_MAX_NAMED_FILES: Final = 20
"""Maximum number of left-out paths in a journal line."""


class SnapshotService:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the owner of the worktree."""

    def __init__(self, workspace: Workspace, session_id: str, state_dir: Path, journal: Journal):
        self._workspace, self._session_id, self._journal = workspace, session_id, journal
        self._limits = SnapshotLimits()
        self._seen = RefMemory(owns_repository=workspace.preparation is not None)
        self._copy = _scratch_directory(state_dir) / "snapshot.index"
        self._lock = asyncio.Lock()
        self._left_out: list[str] = []
        """What the last journaled snapshot left out."""
        self._ignored_count = 0
        """How many ignored files it named."""
        self._settings_problem = ""
        self._had_repository = workspace.preparation is not None or workspace.git.has_repository
        self._repository_problem = ""
        self._scheduled: asyncio.Task[None] | None = None
        """A snapshot that has not started yet, and serves all requests until then."""

    # -- without being asked -----------------------------------------------------------------

    async def before_turn(self) -> None:
        """Take a snapshot before a turn; waits at most ``SnapshotLimits.turn_waits``, and never raises."""
        await self._wait(self._schedule("turn_start"), self._limits.turn_waits)

    def after_turn(self) -> None:
        """Take a snapshot after a turn, in the background."""
        self._schedule("turn_end")

    def after_change(self) -> None:
        """Take a snapshot after a person has changed or committed files, in the background."""
        self._schedule("asked")

    async def before_shutdown(self) -> None:
        """Take the last snapshot; waits at most ``SnapshotLimits.end_waits``, and never raises."""
        await self._wait(self._schedule("shutdown"), self._limits.end_waits)

    async def _wait(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        if task is not None:
            await asyncio.wait((task,), timeout=seconds)

    def _schedule(self, reason: str) -> asyncio.Task[None] | None:
        self._warn_about_repository()
        if not self._workspace.git.has_repository:
            return None
        if self._scheduled is None:
            self._scheduled = asyncio.create_task(self._take_or_warn(reason), name="snapshot")
        return self._scheduled

    def _warn_about_repository(self) -> None:
        """Say once that snapshots have stopped, or are lost with the directory: an agent may remove ``.git``."""
        problem = self._find_repository_problem()
        if problem and problem != self._repository_problem:
            self._journal.append(JournalKind.LOG, level="warning", text=problem)
        self._repository_problem = problem

    def _find_repository_problem(self) -> str:
        workspace = self._workspace
        if workspace.git.has_repository:
            self._had_repository = True
            is_own = (workspace.root / ".git").is_dir()
            if workspace.preparation is not None and is_own:
                return _REPLACED_REPOSITORY
            return ""
        # A directory that is gone as a whole is reported by the status of the workspace.
        if self._had_repository and workspace.root.is_dir():
            return _NO_REPOSITORY
        return ""

    async def _take_or_warn(self, reason: str) -> None:
        try:
            await self.take(reason)
        except Exception as error:
            logger.warning("no snapshot was taken", exc_info=error)
            why = str(error) or type(error).__name__
            self._journal.append(
                JournalKind.LOG,
                level="warning",
                text="no snapshot of the working tree could be taken",
                data={"error": why},
            )

    # -- asked for ---------------------------------------------------------------------------

    async def take(self, reason: str) -> Snapshot:
        """Take a snapshot now, and journal it if something has changed; raises ApiError, OSError."""
        async with self._lock:
            # A request from here on needs its own snapshot: this one may miss its changes.
            self._scheduled = None
            return await self._take(reason)

    async def _take(self, reason: str) -> Snapshot:
        workspace = self._workspace
        parts = (workspace.git, self._session_id, self._copy, reason, self._limits)
        taken = await workspace.call(partial(take_snapshot, seen=self._seen), *parts)
        workspace.dirty = taken.dirty
        if taken.changed or (taken.left_out, taken.ignored_count) != (self._left_out, self._ignored_count):
            self._left_out, self._ignored_count = taken.left_out, taken.ignored_count
            about = {"ref": taken.ref, "commit": taken.commit, "reason": reason, "dirty": taken.dirty}
            named = {
                "left_out": taken.left_out[:_MAX_NAMED_FILES],
                "left_out_reasons": taken.left_out_reasons[:_MAX_NAMED_FILES],
                "left_out_count": len(taken.left_out),
                "ignored_count": taken.ignored_count,
            }
            self._journal.append(
                JournalKind.WORKSPACE_SNAPSHOT, **about, **named, branch=taken.branch or None, head=taken.head or None
            )
        self._warn_about_settings()
        return taken

    def _warn_about_settings(self) -> None:
        problem = self._workspace.git.private.settings_problem
        if problem and problem != self._settings_problem:
            text = "the settings of the repository could not be read, so the snapshot was taken without them"
            self._journal.append(JournalKind.LOG, level="warning", text=text, data={"error": problem[:MAX_REASON]})
        self._settings_problem = problem

    async def changed_since(self, commit: str) -> dict[str, Any]:
        """Return what has changed since an earlier snapshot, including untracked files; raises ApiError."""
        now = await self.take("asked")
        return await self._workspace.call(changes_between, self._workspace.git, commit, now.commit)

    async def restore(self, commit: str = "") -> dict[str, Any]:
        """Restore working tree and index from the newest snapshot, or from ``commit``.

        The current state is first stored under the ref ``kept``. Files that are not in the snapshot stay. Raises
        ApiError if HEAD differs from the snapshot's, because its files would undo later commits.
        """
        async with self._lock:
            wanted = await self._workspace.call(self._find, commit)
            now = await self._take("restore")
            if now.commit == wanted.commit:
                return {"restored": wanted.commit, "kept": None}
            aside = await self._workspace.call(self._replace, wanted, now.commit)
            await self._take("restored")
        return {"restored": wanted.commit, "kept": aside}

    def _find(self, commit: str) -> recovery_snapshots.RecoverySnapshot:
        git, text = self._workspace.git, self._workspace.git.text
        if commit and not (commit.isalnum() and commit.isascii() and 40 <= len(commit) <= 64):
            raise validation_error("commit must be a full commit id", field="commit")
        found = None
        with contextlib.suppress(ApiError):
            found = recovery_snapshots.find_recovery(
                text, commit or recovery_snapshots.session_recovery_ref(self._session_id)
            )
        if found is None or found.session_id != self._session_id:
            raise ApiError(Code.NOT_FOUND, "there is no such snapshot of this session")
        head = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        if head != found.head:
            raise ApiError(Code.CONFLICT, "there are new commits since this snapshot", head=head, base=found.head)
        return found

    def _replace(self, wanted: recovery_snapshots.RecoverySnapshot, now: str) -> str:
        text = partial(self._workspace.git.text, all_settings=True)
        present = recovery_snapshots.find_recovery(text, now)
        assert present is not None, "it was just taken"  # noqa: S101
        aside = recovery_snapshots.set_recovery_aside(text, present)
        recovery_snapshots.restore_recovery(text, wanted)
        for problem in SubmoduleRestorer(self._workspace.git, wanted, rebuilt=False).restore():
            self._journal.append(JournalKind.LOG, level="warning", text=problem)
        return aside


def _scratch_directory(state_dir: Path) -> Path:
    """Return a directory that git can write to: as another user it cannot enter the state directory."""
    if spawning.child_user_arguments():
        return Path(tempfile.mkdtemp(prefix="agentctl-"))
    return state_dir
