"""Take and restore recovery snapshots of uncommitted work, as commits under a hidden ref.

Snapshots are taken before and after each turn, and before agentctl ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.process import spawning
from executors_app.agentctl.protocol import ApiError, Code, JournalKind, validation_error
from executors_app.agentctl.workspace import recovery_snapshots
from executors_app.agentctl.workspace.git import GitError, WorkspaceGit, changes_between
from executors_app.agentctl.workspace.recovery_snapshots import RecoverySnapshot
from executors_app.agentctl.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

_IDENTITY: Final = {
    **{f"GIT_{role}_NAME": "Kandev" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "kandev@localhost" for role in ("AUTHOR", "COMMITTER")},
}
_LISTING_LIMIT: Final = 64 << 20
_UNMERGED: Final = 128


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Limits of one snapshot: sizes in bytes, times in seconds."""

    file: int = 50 << 20
    """Larger files are left out and listed."""
    total: int = 500 << 20
    """Total of all changed files; beyond it the largest are left out."""
    seconds: float = 60.0
    turn_waits: float = 5.0
    """Maximum wait before a turn; a slower snapshot continues during the turn."""
    end_waits: float = 20.0
    """Maximum wait before agentctl ends."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The new state of a recovery ref."""

    ref: str
    commit: str
    dirty: bool
    """Whether there are uncommitted changes."""
    changed: bool
    """Whether it differs from the previous snapshot."""
    left_out: list[str] = field(default_factory=list)
    """Paths of files that are too large, and of nested repositories."""

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``POST /snapshot``."""
        return {
            "ref": self.ref,
            "commit": self.commit,
            "dirty": self.dirty,
            "changed": self.changed,
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True)
class _Trees:
    """Object ids: the checked-out commit (or empty), its tree, and the trees of index and working tree."""

    head: str
    committed: str
    index: str
    files: str


class _SnapshotAttempt:
    """One snapshot in progress, on a copy of the index, so that the agent's own index never changes."""

    def __init__(self, git: WorkspaceGit, copy: Path, limits: SnapshotLimits):
        self._git, self._copy, self._limits = git, copy, limits
        self._deadline = time.monotonic() + limits.seconds
        self._environment = {**_IDENTITY, "GIT_INDEX_FILE": str(copy)}

    def run(self, *arguments: str, **options: Any) -> Any:
        """Run git on the copied index, within the remaining time."""
        remaining = max(0.1, self._deadline - time.monotonic())
        return self._git.run(*arguments, environment=self._environment, timeout=remaining, **options)

    def text(self, *arguments: str) -> str:
        """``run``, and return the output as text."""
        return str(self.run(*arguments).text)

    def trees(self) -> tuple[_Trees, list[bytes]]:
        """Write all files into the object store; return the trees and the paths that were left out."""
        git_directory, head, committed = self._head()
        self._copy_index(Path(git_directory) / "index")
        index = self._index_tree(committed)
        left_out = self._too_large()
        self._add(left_out)
        return _Trees(head, committed, index, self.text("write-tree")), left_out

    def commit(self, tree: str, parents: list[str], message: str) -> str:
        """Create a commit without a branch."""
        options = [word for parent in parents if parent for word in ("-p", parent)]
        return self.text("commit-tree", tree, *options, "-m", message)

    def update_ref(self, session_id: str, reason: str, trees: _Trees, left_out: list[bytes]) -> Snapshot:
        """Point the session's ref at the trees, unless it does already."""
        ref = recovery_snapshots.session_recovery_ref(session_id)
        earlier = self._earlier(ref)
        dirty = bool(left_out) or {trees.index, trees.files} != {trees.committed}
        names = [path.decode("utf-8", "replace") for path in left_out]
        if earlier and _is_unchanged(self.text, earlier, trees):
            return Snapshot(ref, earlier.commit, dirty, changed=False, left_out=names)
        index = self.commit(trees.index, [trees.head], f"Index of {session_id}")
        recovery = RecoverySnapshot("", trees.head, index, session_id)
        message = recovery_snapshots.recovery_message(recovery, reason, self.branch())
        commit = self.commit(trees.files, [trees.head, index], message)
        # Only if the ref still names the earlier snapshot: sessions that share a worktree share the ref, too.
        try:
            self.text("update-ref", ref, commit, earlier.commit if earlier else "")
        except GitError:
            if not self._was_moved(ref, earlier):
                raise
            return self.update_ref(session_id, reason, trees, left_out)
        return Snapshot(ref, commit, dirty, changed=True, left_out=names)

    def _was_moved(self, ref: str, earlier: RecoverySnapshot | None) -> bool:
        """Whether another session in the same worktree has updated the ref in the meantime."""
        now = str(self.run("rev-parse", "--verify", "--quiet", ref, good=(0, 1)).text)
        return now not in ("", earlier.commit if earlier else "")

    def _earlier(self, ref: str) -> RecoverySnapshot | None:
        """Return the current snapshot; delete a damaged one, which would block every later one."""
        try:
            found = recovery_snapshots.find_recovery(self.text, ref)
            if found:
                self.text("rev-parse", f"{found.commit}^{{tree}}", f"{found.index}^{{tree}}")
                return found
        except GitError as error:
            if error.exit_code is None:  # a timeout, not a damaged snapshot
                raise
            logger.warning("the snapshot at %s is damaged and will be replaced: %s", ref, error)
        self._as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", ref))
        return None

    def branch(self) -> str:
        """Return the checked-out branch; empty if there is none."""
        return str(self.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text)

    def _head(self) -> list[str]:
        """Return the worktree's git directory, the checked-out commit (or empty), and its tree."""
        git_directory = self.text("rev-parse", "--absolute-git-dir")
        output = self.run("rev-parse", "HEAD^{commit}", "HEAD^{tree}", good=(0, 128))
        if output.exit_code == 0:
            return [git_directory, *output.text.split("\n")]
        # Before the first commit: the empty tree, which git hashes from empty input.
        return [git_directory, "", self.text("hash-object", "-t", "tree", "--stdin")]

    def _copy_index(self, index: Path) -> None:
        for stale in (self._copy, self._copy.with_name(f"{self._copy.name}.lock")):
            stale.unlink(missing_ok=True)
        if index.is_file():
            self._as_agent("cp", "--preserve=timestamps", "--no-target-directory", "--", index, self._copy)

    def _as_agent(self, *command: str | Path) -> None:
        """Run a command with the agent's rights, on paths that the agent could replace by links; raises GitError."""
        remaining = max(0.1, self._deadline - time.monotonic())
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=remaining, **spawning.child_user_arguments()
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"{command[0]} failed in the repository of the workspace") from error

    def _index_tree(self, committed: str) -> str:
        """Return the index as a tree; during a merge, when it has none, HEAD's tree."""
        try:
            return self.text("write-tree")
        except GitError as error:
            if error.exit_code != _UNMERGED:
                raise
            return committed

    def _too_large(self) -> list[bytes]:
        listed = self.run("ls-files", "-o", "-m", "-z", "--exclude-standard", limit=_LISTING_LIMIT).fields
        left_out = [path for path in listed if path.endswith(b"/")]
        sizes = sorted((size, path) for path in set(listed) if (size := self._size(path)) is not None)
        total = 0
        for size, path in sizes:
            total += size
            if size > self._limits.file or total > self._limits.total:
                left_out.append(path)
        return sorted(left_out)

    def _size(self, path: bytes) -> int | None:
        try:
            return (self._git.root / path.decode("utf-8", "surrogateescape")).lstat().st_size
        except OSError:
            return None

    def _add(self, left_out: list[bytes]) -> None:
        pathspec = b".\0" + b"".join(b":(exclude,top,literal)" + path.rstrip(b"/") + b"\0" for path in left_out)
        # 1: some file cannot be read; all others are in.
        arguments = ("add", "--all", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
        self.run(*arguments, stdin=pathspec, good=(0, 1))


def take_snapshot(
    git: WorkspaceGit, session_id: str, copy: Path, reason: str, limits: SnapshotLimits = SnapshotLimits()
) -> Snapshot:
    """Update the session's recovery ref; raises GitError, OSError. ``copy`` is a path for the copied index."""
    taking = _SnapshotAttempt(git, copy, limits)
    try:
        trees, left_out = taking.trees()
        return taking.update_ref(session_id, reason, trees, left_out)
    finally:
        copy.unlink(missing_ok=True)


def _is_unchanged(text: Callable[..., str], earlier: RecoverySnapshot, trees: _Trees) -> bool:
    rev_parse = partial(text, "rev-parse")
    return earlier.head == trees.head and rev_parse(f"{earlier.commit}^{{tree}}", f"{earlier.index}^{{tree}}") == (
        f"{trees.files}\n{trees.index}"
    )


_MAX_NAMED_FILES: Final = 20
"""Maximum number of left-out paths in a journal line."""


class SnapshotService:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the owner of the worktree."""

    def __init__(
        self,
        workspace: Workspace,
        session_id: str,
        state_dir: Path,
        journal: Journal,
        limits: SnapshotLimits = SnapshotLimits(),
    ):
        self._workspace, self._session_id, self._journal, self._limits = workspace, session_id, journal, limits
        self._copy = _scratch_directory(state_dir) / "snapshot.index"
        self._lock = asyncio.Lock()
        self._scheduled: asyncio.Task[None] | None = None
        """A snapshot that has not started yet, and serves all requests until then."""

    # -- without being asked -----------------------------------------------------------------

    async def before_turn(self) -> None:
        """Take a snapshot before a turn; waits at most ``SnapshotLimits.turn_waits``, and never raises."""
        await self._wait(self._schedule("turn_start"), self._limits.turn_waits)

    def after_turn(self) -> None:
        """Take a snapshot after a turn, in the background."""
        self._schedule("turn_end")

    async def before_shutdown(self) -> None:
        """Take the last snapshot; waits at most ``SnapshotLimits.end_waits``, and never raises."""
        await self._wait(self._schedule("shutdown"), self._limits.end_waits)

    async def _wait(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        if task is not None:
            await asyncio.wait((task,), timeout=seconds)

    def _schedule(self, reason: str) -> asyncio.Task[None] | None:
        if not self._workspace.git.has_repository:
            return None
        if self._scheduled is None:
            self._scheduled = asyncio.create_task(self._take_or_warn(reason), name="snapshot")
        return self._scheduled

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
            # A request from here on needs a snapshot of its own: this one may miss its changes.
            self._scheduled = None
            return await self._take(reason)

    async def _take(self, reason: str) -> Snapshot:
        workspace = self._workspace
        call = workspace.call(take_snapshot, workspace.git, self._session_id, self._copy, reason, self._limits)
        taken = await call
        workspace.dirty = taken.dirty
        if taken.changed:
            named = {"left_out": taken.left_out[:_MAX_NAMED_FILES], "left_out_count": len(taken.left_out)}
            about = {"ref": taken.ref, "commit": taken.commit, "reason": reason, "dirty": taken.dirty}
            self._journal.append(JournalKind.WORKSPACE_SNAPSHOT, **about, **named)
        return taken

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
        text = self._workspace.git.text
        present = recovery_snapshots.find_recovery(text, now)
        assert present is not None, "it was just taken"  # noqa: S101
        aside = recovery_snapshots.set_recovery_aside(text, present)
        recovery_snapshots.restore_recovery(text, wanted)
        return aside


def _scratch_directory(state_dir: Path) -> Path:
    """Return a directory that git can write to: as another user it cannot enter the state directory."""
    return Path(tempfile.mkdtemp(prefix="agentctl-")) if spawning.child_user_arguments() else state_dir
