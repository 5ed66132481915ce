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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.process import spawning
from executors_app.agentctl.protocol import ApiError, Code, JournalKind, validation_error
from executors_app.agentctl.workspace import recovery_snapshots
from executors_app.agentctl.workspace.git import GitError, GitOutput, WorkspaceGit, changes_between
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
    """The new state of a recovery ref; also the answer of ``POST /snapshot``."""

    ref: str
    commit: str
    dirty: bool
    """Whether there are uncommitted changes."""
    changed: bool
    """Whether it differs from the previous snapshot."""
    left_out: list[str] = field(default_factory=list)
    """Paths of files that are too large, and of nested repositories."""


@dataclass(frozen=True, slots=True)
class _Status:
    """What git reports about index and working tree."""

    head: str
    """The checked-out commit; empty before the first."""
    branch: str
    """Empty if none is checked out."""
    is_staged: bool
    """Whether the index may differ from the commit."""
    unstaged: Sequence[bytes]
    """Paths of modified and untracked files, and of nested repositories, which end with a slash."""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> _Status:
        """Parse ``git status --porcelain=v2 -z --branch --no-renames``."""
        headers = dict(field.decode("utf-8", "replace").split(" ")[1:3] for field in fields if field.startswith(b"# "))
        head, branch = headers.get("branch.oid", ""), headers.get("branch.head", "")
        entries = [field for field in fields if not field.startswith(b"#")]
        unstaged = [_path_of(entry) for entry in entries if entry.startswith((b"?", b"u")) or entry[3:4] != b"."]
        is_staged = any(entry.startswith(b"u") or entry[2:3] != b"." for entry in entries if entry[:1] != b"?")
        return cls("" if head == "(initial)" else head, "" if branch == "(detached)" else branch, is_staged, unstaged)


_FIELDS_BEFORE_PATH: Final = {b"?": 1, b"1": 8, b"u": 10}


def _path_of(entry: bytes) -> bytes:
    return entry.split(b" ", _FIELDS_BEFORE_PATH[entry[:1]])[-1]


@dataclass(frozen=True, slots=True)
class _Objects:
    """What the repository has: its git directory, the tree of the commit, and the last snapshot with its trees."""

    git_directory: Path
    committed: str
    earlier: RecoverySnapshot | None = None
    files: str = ""
    index: str = ""


class _SnapshotAttempt:
    """One snapshot in progress, on a copy of the index, so that the agent's own index never changes.

    Each git process takes milliseconds, and turns and restarts wait for snapshots, so there are few: three if nothing
    has changed since the last snapshot and nothing is uncommitted.
    """

    def __init__(self, git: WorkspaceGit, session_id: str, copy: Path, limits: SnapshotLimits):
        self._git, self._session_id, self._copy, self._limits = git, session_id, copy, limits
        self._ref = recovery_snapshots.session_recovery_ref(session_id)
        self._deadline = time.monotonic() + limits.seconds

    def run(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git within the remaining time."""
        remaining = max(0.1, self._deadline - time.monotonic())
        return self._git.run(*arguments, timeout=remaining, **options)

    def text(self, *arguments: str) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments).text

    def take(self, reason: str) -> Snapshot:
        """Write all files into the object store, and point the session's ref at them, unless it does already."""
        status = self._status()
        objects = self._read_objects(status.head)
        index = files = objects.committed
        left_out: list[bytes] = []
        if status.is_staged or status.unstaged:
            self._copy_index(objects.git_directory / "index")
            if status.is_staged:
                index = self._index_tree(objects.committed)
            left_out = self._too_large(status.unstaged)
            self._add(left_out)
            files = self._on_copy("write-tree").text
        return self._update_ref(reason, status, objects, (index, files), left_out)

    def _status(self) -> _Status:
        # Whatever the repository's configuration says, everything that ``git add`` would take is listed.
        which = ("--untracked-files=all", "--ignore-submodules=dirty", "--no-renames")
        arguments = ("status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", *which)
        return _Status.parse(self.run(*arguments, limit=_LISTING_LIMIT).fields)

    def _read_objects(self, head: str) -> _Objects:
        """Read what git has; delete a damaged snapshot, which would block every later one."""
        # Before the first commit: the empty tree, which git hashes from empty input.
        committed = f"{head}^{{tree}}" if head else self.text("hash-object", "-t", "tree", "--stdin")
        try:
            if found := recovery_snapshots.find_recovery(self.text, self._ref):
                trees = (committed, f"{found.commit}^{{tree}}", f"{found.index}^{{tree}}")
                committed, files, index, directory = self.text("rev-parse", *trees, "--absolute-git-dir").split("\n", 3)
                return _Objects(Path(directory), committed, found, files, index)
        except GitError as error:
            if error.exit_code is None:  # a timeout, not a damaged snapshot
                raise
            logger.warning("the snapshot at %s is damaged and will be replaced: %s", self._ref, error)
        committed, directory = self.text("rev-parse", committed, "--absolute-git-dir").split("\n", 1)
        self._as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", self._ref))
        return _Objects(Path(directory), committed)

    def _update_ref(
        self, reason: str, status: _Status, objects: _Objects, trees: tuple[str, str], left_out: list[bytes]
    ) -> Snapshot:
        """``trees`` are those of index and working tree."""
        earlier, head = objects.earlier, status.head
        dirty = bool(left_out) or set(trees) != {objects.committed}
        names = [path.decode("utf-8", "replace") for path in left_out]
        if earlier and (earlier.head, objects.index, objects.files) == (head, *trees):
            return Snapshot(self._ref, earlier.commit, dirty, changed=False, left_out=names)
        index = self._commit(trees[0], [head], f"Index of {self._session_id}")
        recovery = RecoverySnapshot("", head, index, self._session_id)
        message = recovery_snapshots.recovery_message(recovery, reason, status.branch)
        commit = self._commit(trees[1], [head, index], message)
        # Only if the ref still names the earlier snapshot: sessions that share a worktree share the ref, too.
        try:
            self.text("update-ref", self._ref, commit, earlier.commit if earlier else "")
        except GitError:
            if not self._was_moved(earlier):
                raise
            return self._update_ref(reason, status, self._read_objects(head), trees, left_out)
        return Snapshot(self._ref, commit, dirty, changed=True, left_out=names)

    def _commit(self, tree: str, parents: list[str], message: str) -> str:
        """Create a commit without a branch."""
        options = [word for parent in parents if parent for word in ("-p", parent)]
        return self.run("commit-tree", tree, *options, "-m", message, environment=_IDENTITY).text

    def _was_moved(self, earlier: RecoverySnapshot | None) -> bool:
        """Whether another session in the same worktree has updated the ref in the meantime."""
        now = self.run("rev-parse", "--verify", "--quiet", self._ref, good=(0, 1)).text
        return now not in ("", earlier.commit if earlier else "")

    def _on_copy(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git on the copied index."""
        return self.run(*arguments, environment={"GIT_INDEX_FILE": str(self._copy)}, **options)

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
            return self._on_copy("write-tree").text
        except GitError as error:
            if error.exit_code != _UNMERGED:
                raise
            return committed

    def _too_large(self, paths: Sequence[bytes]) -> list[bytes]:
        left_out = [path for path in paths if path.endswith(b"/")]
        sizes = sorted((size, path) for path in set(paths) if (size := self._size(path)) is not None)
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
        self._on_copy(*arguments, stdin=pathspec, good=(0, 1))


def take_snapshot(
    git: WorkspaceGit, session_id: str, copy: Path, reason: str, limits: SnapshotLimits = SnapshotLimits()
) -> Snapshot:
    """Update the session's recovery ref; raises GitError, OSError. ``copy`` is a path for the copied index."""
    try:
        return _SnapshotAttempt(git, session_id, copy, limits).take(reason)
    finally:
        copy.unlink(missing_ok=True)


_MAX_NAMED_FILES: Final = 20
"""Maximum number of left-out paths in a journal line."""


class SnapshotService:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the owner of the worktree."""

    def __init__(self, workspace: Workspace, session_id: str, state_dir: Path, journal: Journal):
        self._workspace, self._session_id, self._journal = workspace, session_id, journal
        self._limits = SnapshotLimits()
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
            # A request from here on needs its own snapshot: this one may miss its changes.
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
