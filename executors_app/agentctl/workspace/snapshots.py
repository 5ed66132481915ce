"""Recovery snapshots of the uncommitted work.

Take one as commits under a hidden ref, before and after each turn and at the end, and restore one.
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
from executors_app.agentctl.process import privilege_drop
from executors_app.agentctl.protocol import ApiError, Code, JournalKind, validation_error
from executors_app.agentctl.workspace import git_changes, recovery_snapshots
from executors_app.agentctl.workspace.git import GitError, WorkspaceGit
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
    """Of one snapshot: sizes in bytes, times in seconds."""

    file: int = 50 << 20
    """Larger files are left out, and named."""
    total: int = 500 << 20
    """Of all changed files together; the largest of more are left out."""
    seconds: float = 60.0
    turn_waits: float = 5.0
    """Before a turn; a snapshot that takes longer goes on beside it."""
    end_waits: float = 20.0
    """Before agentctl ends."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a recovery ref keeps now."""

    ref: str
    commit: str
    dirty: bool
    """Something is not committed."""
    changed: bool
    """It is another than the one before."""
    left_out: list[str] = field(default_factory=list)
    """Paths that are too large, or repositories of their own."""

    def to_json(self) -> dict[str, Any]:
        """As the answer of ``POST /snapshot`` has it."""
        return {
            "ref": self.ref,
            "commit": self.commit,
            "dirty": self.dirty,
            "changed": self.changed,
            "left_out": self.left_out,
        }


@dataclass(frozen=True, slots=True)
class _Trees:
    """Object names: the commit that is checked out (or empty), its tree, and those of the index and the files."""

    head: str
    committed: str
    index: str
    files: str


class _SnapshotAttempt:
    """One snapshot being taken on a copy of the index at ``copy``."""

    def __init__(self, git: WorkspaceGit, copy: Path, limits: SnapshotLimits):
        self._git, self._copy, self._limits = git, copy, limits
        self._until = time.monotonic() + limits.seconds
        self._environment = {**_IDENTITY, "GIT_INDEX_FILE": str(copy)}

    def run(self, *arguments: str, **options: Any) -> Any:
        """Git on the copy, for what is left of the time."""
        left = max(0.1, self._until - time.monotonic())
        return self._git.run(*arguments, environment=self._environment, timeout=left, **options)

    def text(self, *arguments: str) -> str:
        """``run`` for what is short."""
        return str(self.run(*arguments).text)

    def trees(self) -> tuple[_Trees, list[bytes]]:
        """Write everything into the object store; and what was left out."""
        place, head, committed = self._head()
        self._copy_index(Path(place) / "index")
        index = self._index_tree(committed)
        left_out = self._too_large()
        self._add(left_out)
        return _Trees(head, committed, index, self.text("write-tree")), left_out

    def commit(self, tree: str, parents: list[str], message: str) -> str:
        """A commit that no branch has."""
        words = [word for parent in parents if parent for word in ("-p", parent)]
        return self.text("commit-tree", tree, *words, "-m", message)

    def keep(self, session_id: str, reason: str, trees: _Trees, left_out: list[bytes]) -> Snapshot:
        """Let the session's ref keep the trees, unless it does already."""
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
        try:
            self.text("update-ref", ref, commit, earlier.commit if earlier else "")
        except GitError:
            if not self._was_moved(ref, earlier):
                raise
            return self.keep(session_id, reason, trees, left_out)
        return Snapshot(ref, commit, dirty, changed=True, left_out=names)

    def _was_moved(self, ref: str, earlier: RecoverySnapshot | None) -> bool:
        """Another session that works in the same worktree has kept it meanwhile."""
        now = str(self.run("rev-parse", "--verify", "--quiet", ref, good=(0, 1)).text)
        return now not in ("", earlier.commit if earlier else "")

    def _earlier(self, ref: str) -> RecoverySnapshot | None:
        """The present snapshot; one that is damaged is let go, or it would be in the way of every later one."""
        try:
            found = recovery_snapshots.find_recovery(self.text, ref)
            if found:
                self.text("rev-parse", f"{found.commit}^{{tree}}", f"{found.index}^{{tree}}")
                return found
        except GitError as error:
            if error.exit_code is None:  # nothing is wrong with it: git had no time
                raise
            logger.warning("the snapshot at %s is damaged, a new one takes its place: %s", ref, error)
        self._as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", ref))
        return None

    def branch(self) -> str:
        """The branch that is checked out; empty for none."""
        return str(self.run("symbolic-ref", "--quiet", "--short", "HEAD", good=(0, 1)).text)

    def _head(self) -> list[str]:
        """Git's directory of this worktree, the commit that is checked out (or empty), and its tree."""
        place = self.text("rev-parse", "--absolute-git-dir")
        told = self.run("rev-parse", "HEAD^{commit}", "HEAD^{tree}", good=(0, 128))
        if told.exit_code == 0:
            return [place, *told.text.split("\n")]
        return [place, "", self.text("hash-object", "-t", "tree", "--stdin")]

    def _copy_index(self, index: Path) -> None:
        for left in (self._copy, self._copy.with_name(f"{self._copy.name}.lock")):
            left.unlink(missing_ok=True)
        if index.is_file():
            self._as_agent("cp", "--preserve=timestamps", "--no-target-directory", "--", index, self._copy)

    def _as_agent(self, *command: str | Path) -> None:
        """Run something on files whose places the agent can turn into links; GitFailed."""
        left = max(0.1, self._until - time.monotonic())
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=left, **privilege_drop.child_user_arguments()
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"{command[0]} failed in the repository of the workspace") from error

    def _index_tree(self, committed: str) -> str:
        """The index as a tree; in the middle of a merge, where it has none, HEAD's."""
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
        words = ("add", "--all", "--ignore-errors", "--pathspec-from-file=-", "--pathspec-file-nul")
        self.run(*words, stdin=pathspec, good=(0, 1))


def take_snapshot(
    git: WorkspaceGit, session_id: str, copy: Path, reason: str, limits: SnapshotLimits = SnapshotLimits()
) -> Snapshot:
    """Bring the session's recovery ref up to date; raises GitFailed, OSError. ``copy``: a path of our own."""
    taking = _SnapshotAttempt(git, copy, limits)
    try:
        trees, left_out = taking.trees()
        return taking.keep(session_id, reason, trees, left_out)
    finally:
        copy.unlink(missing_ok=True)


def _is_unchanged(text: Callable[..., str], earlier: RecoverySnapshot, trees: _Trees) -> bool:
    look = partial(text, "rev-parse")
    return earlier.head == trees.head and look(f"{earlier.commit}^{{tree}}", f"{earlier.index}^{{tree}}") == (
        f"{trees.files}\n{trees.index}"
    )


_MAX_NAMED_FILES: Final = 20
"""Paths that a journal line names of those that were left out."""


class SnapshotService:
    """The recovery snapshots of one worktree, one at a time; ``session_id`` is the session whose worktree it is."""

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
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        """A snapshot that has not begun: whoever wants one now gets this."""

    # -- without being asked -----------------------------------------------------------------

    async def before_turn(self) -> None:
        """Keep what is there before the agent goes on; waits ``Limits.turn_waits`` at most, and never raises."""
        await self._wait(self._soon("turn_start"), self._limits.turn_waits)

    def after_turn(self) -> None:
        """Keep what the agent has left, beside whatever comes next."""
        self._soon("turn_end")

    async def at_the_end(self) -> None:
        """Keep what is there before agentctl ends; waits ``Limits.end_waits`` at most, and never raises."""
        await self._wait(self._soon("shutdown"), self._limits.end_waits)

    async def _wait(self, task: asyncio.Task[None] | None, seconds: float) -> None:
        if task is not None:
            await asyncio.wait((task,), timeout=seconds)

    def _soon(self, reason: str) -> asyncio.Task[None] | None:
        if not self._workspace.git.has_repository:
            return None
        if self._next is None:
            self._next = asyncio.create_task(self._quietly(reason), name="snapshot")
        return self._next

    async def _quietly(self, reason: str) -> None:
        try:
            await self.take(reason)
        except Exception as error:
            logger.warning("no snapshot", exc_info=error)
            why = str(error) or type(error).__name__
            self._journal.append(
                JournalKind.LOG, level="warning", text="the working tree could not be kept", data={"error": why}
            )

    # -- asked for ---------------------------------------------------------------------------

    async def take(self, reason: str) -> Snapshot:
        """Keep the working tree now, and say so in the journal if it has changed; Refused, OSError."""
        async with self._turn:
            self._next = None
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
        """What is another in the working tree now than in an earlier snapshot, untracked files included; Refused."""
        now = await self.take("asked")
        return await self._workspace.call(git_changes.changes_between, self._workspace.git, commit, now.commit)

    async def restore(self, commit: str = "") -> dict[str, Any]:
        """Bring working tree and index back from the newest snapshot, or from the one that is named.

        What is there now is kept first, under ``kept``. Files that the snapshot does not have stay.
        Refused where HEAD is another than the snapshot's: its files would undo what was committed.
        """
        async with self._turn:
            wanted = await self._workspace.call(self._find, commit)
            now = await self._take("restore")
            if now.commit == wanted.commit:
                return {"restored": wanted.commit, "kept": None}
            kept = await self._workspace.call(self._replace, wanted, now.commit)
            await self._take("restored")
        return {"restored": wanted.commit, "kept": kept}

    def _find(self, commit: str) -> recovery_snapshots.RecoverySnapshot:
        git, text = self._workspace.git, self._workspace.git.text
        if commit and not (commit.isalnum() and commit.isascii() and 40 <= len(commit) <= 64):
            raise validation_error("commit must be the whole name of a commit", field="commit")
        found = None
        with contextlib.suppress(ApiError):
            found = recovery_snapshots.find_recovery(
                text, commit or recovery_snapshots.session_recovery_ref(self._session_id)
            )
        if found is None or found.session_id != self._session_id:
            raise ApiError(Code.NOT_FOUND, "there is no such snapshot of this session")
        head = git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        if head != found.head:
            raise ApiError(Code.CONFLICT, "something was committed since this snapshot", head=head, base=found.head)
        return found

    def _replace(self, wanted: recovery_snapshots.RecoverySnapshot, now: str) -> str:
        text = self._workspace.git.text
        present = recovery_snapshots.find_recovery(text, now)
        assert present is not None, "it was just taken"  # noqa: S101
        kept = recovery_snapshots.set_recovery_aside(text, present)
        recovery_snapshots.restore_recovery(text, wanted)
        return kept


def _scratch_directory(state_dir: Path) -> Path:
    """Where git can write too: as another user than ours it does not get into the state directory."""
    return Path(tempfile.mkdtemp(prefix="agentctl-")) if privilege_drop.child_user_arguments() else state_dir
