"""Take recovery snapshots of uncommitted work, as commits under a hidden ref."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace.left_commits import RefMemory, keep_left_commits
from executors_app.agentctl.workspace.submodule_snapshots import SubmoduleSaver
from executors_app.agentctl.workspace.working_tree import DEFAULT_LIMITS, MAX_REASON, SnapshotLimits, WorkingTree
from executors_app.machine.git import git_directory, recovery_snapshots
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.git.submodules import Submodule
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

logger = logging.getLogger(__name__)
_MAX_MOVES: Final = 3
"""How often a snapshot is tried again because its ref was moved meanwhile."""


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
        self._moves = 0
        """How often the ref was somewhere else than it had been read."""
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
                commits = [found.commit, found.index]
                if found.submodules:
                    commits.append(found.submodules)
                trees = [committed]
                trees += [f"{commit}^{{tree}}" for commit in commits]
                return _Objects(found, *self.text("rev-parse", *trees).split("\n"))
        except GitError as error:
            if error.exit_code is None:  # a timeout, not a damaged snapshot
                raise
            logger.warning("the snapshot at %s is damaged and will be replaced: %s", self._ref, error)
        committed = self.text("rev-parse", committed)
        # A ref that git cannot read has only its file, and one that names no snapshot may be among the packed ones.
        self._tree.as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", self._ref))
        self.run("update-ref", "--no-deref", "-d", self._ref, good=(0, 1, 128))
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
            self.text("update-ref", "--no-deref", self._ref, commit, _commit_of(earlier))
        except GitError:
            self._moves += 1
            if self._moves > _MAX_MOVES or not self._was_moved(earlier):
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
        options: list[str] = []
        for parent in filter(None, parents):
            options += ["-p", parent]
        return self.run("commit-tree", tree, *options, "-m", message, environment=recovery_snapshots.IDENTITY).text

    def _was_moved(self, earlier: RecoverySnapshot | None) -> bool:
        """Whether another session in the same worktree has updated the ref in the meantime."""
        now = self.run("rev-parse", "--verify", "--quiet", self._ref, good=(0, 1)).text
        return now not in ("", _commit_of(earlier))


def _commit_of(snapshot: RecoverySnapshot | None) -> str:
    if snapshot is None:
        return ""
    return snapshot.commit


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
