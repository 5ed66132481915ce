"""Take and restore recovery snapshots of uncommitted work, as commits under a hidden ref.

Snapshots are taken before and after each turn, and before agentctl ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.workspace.changes import changes_between
from executors_app.agentctl.workspace.index_listing import (
    IndexListing,
    Submodule,
    find_submodule_changes,
    parse_index_listing,
    path_of_entry,
)
from executors_app.agentctl.workspace.left_commits import RefMemory, keep_left_commits
from executors_app.agentctl.workspace.ref_locks import move_ref
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git import git_directory, git_failures, recovery_snapshots
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.private_git_directory import common_directory_of
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.git.workspace_git import GitError, GitOutput, WorkspaceGit
from executors_app.machine.process import spawning
from executors_app.wire.protocol import ApiError, Code, JournalKind, validation_error

logger = logging.getLogger(__name__)

_IDENTITY: Final = {
    **{f"GIT_{role}_NAME": "Kandev" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "kandev@localhost" for role in ("AUTHOR", "COMMITTER")},
}
_LISTING_LIMIT: Final = 64 << 20
_UNMERGED: Final = 128
_EVERY_FILE: Final = ("-c", "core.sparseCheckout=false")
"""An agent may have changed files outside of a sparse checkout: git refuses to add them, and lists no flags of them."""
_ADD: Final = (*_EVERY_FILE, "add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
_MAX_ADDS: Final = 100
"""Attempts to add files of which git refuses some."""
_MAX_REASON: Final = 200
_UNREADABLE_DIRECTORY: Final = re.compile(r"^warning: could not open directory '([^'\n]+)'", re.MULTILINE)


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
    """Paths of what is not in it."""
    left_out_reasons: list[str] = field(default_factory=list)
    """Why, for each of these paths."""
    branch: str = ""
    """The checked-out branch; empty for a detached HEAD."""
    head: str = ""
    """The checked-out commit; empty before the first."""


@dataclass(frozen=True, slots=True)
class _Status:
    """What git reports about index and working tree."""

    head: str
    """The checked-out commit; empty before the first."""
    is_staged: bool
    """Whether the index may differ from the commit."""
    unstaged: Sequence[bytes]
    """Paths of modified and untracked files, and of nested repositories, which end with a slash."""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> _Status:
        """Parse ``git status --porcelain=v2 -z --branch --no-renames``."""
        headers = dict(field.decode("utf-8", "replace").split(" ")[1:3] for field in fields if field.startswith(b"# "))
        head = headers.get("branch.oid", "")
        entries = [field for field in fields if not field.startswith(b"#")]
        unstaged = [path_of_entry(entry) for entry in entries if entry.startswith((b"?", b"u")) or entry[3:4] != b"."]
        is_staged = any(entry.startswith(b"u") or entry[2:3] != b"." for entry in entries if entry[:1] != b"?")
        return cls("" if head == "(initial)" else head, is_staged, unstaged)


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
        return f"{BRANCH_PREFIX}{self.branch}" if self.branch else ""


@dataclass(frozen=True, slots=True)
class _Objects:
    """What the repository has: the tree of the commit, and the last snapshot with its trees."""

    committed: str
    earlier: RecoverySnapshot | None = None
    files: str = ""
    index: str = ""


class _SnapshotAttempt:
    """One snapshot in progress, on a copy of the index, so that the agent's own index never changes.

    Each git process takes milliseconds, and turns and restarts wait for snapshots, so there are few: three if nothing
    has changed since the last snapshot and nothing is uncommitted.
    """

    def __init__(self, git: WorkspaceGit, session_id: str, copy: Path, limits: SnapshotLimits, seen: RefMemory):
        self._git, self._session_id, self._copy, self._limits = git, session_id, copy, limits
        self._seen = seen
        self._kept: Mapping[str, str] = {}
        """Commits beside the branch that were set aside with this snapshot."""
        self._ref = recovery_snapshots.session_recovery_ref(session_id)
        self._deadline = time.monotonic() + limits.seconds
        self._left_out: dict[bytes, str] = {}
        """Paths that are not stored, with the reasons."""
        self._excluded: Mapping[bytes, bytes] = {}
        """The submodule of each such path inside one: git refuses to exclude a path inside a submodule."""

    def run(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git within the remaining time."""
        remaining = max(0.1, self._deadline - time.monotonic())
        git = partial(self._git.run, *arguments, timeout=remaining, **options)
        own = git_directory.git_directory_of(self._git.root) if arguments[0] == "update-ref" else None
        return move_ref(git, common_directory_of(own), arguments[1]) if own else git()

    def text(self, *arguments: str) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments).text

    def take(self, reason: str) -> Snapshot:
        """Write all files into the object store, and point the session's ref at them, unless it does already."""
        listing = self._index_listing()
        uses_copy = bool(listing.assumed_unchanged or listing.not_checked_out)
        if uses_copy:
            self._show_hidden(listing)
        status = self._status(on_copy=uses_copy)
        objects = self._read_objects(status.head)
        index = files = objects.committed
        in_submodules = find_submodule_changes(self._git, listing.submodules)
        self._left_out |= in_submodules
        self._excluded = _submodules_with(in_submodules, listing.submodules)
        self._keep_left_commits(status.head)
        if status.is_staged or status.unstaged:
            if not uses_copy:
                self._copy_index()
            if status.is_staged:
                index = self._index_tree(objects.committed)
            self._leave_out_large(status.unstaged)
            self._add(status.unstaged)
            files = self._on_copy("write-tree").text
        return self._update_ref(reason, status, objects, (index, files))

    def _status(self, *, on_copy: bool = False) -> _Status:
        # Whatever .gitmodules says, everything that ``git add`` would take is listed.
        which = ("--untracked-files=all", "--ignore-submodules=dirty", "--no-renames")
        arguments = ("status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", *which)
        remaining = max(0.1, self._deadline - time.monotonic())
        index = {"GIT_INDEX_FILE": str(self._copy)} if on_copy else {}
        output = self._git.compare(*arguments, environment=index, limit=_LISTING_LIMIT, timeout=remaining)
        for name in _UNREADABLE_DIRECTORY.findall(output.errors):
            self._left_out[os.fsencode(name)] = "the directory cannot be read"
        return _Status.parse(output.fields)

    def _index_listing(self) -> IndexListing:
        arguments = (*_EVERY_FILE, "ls-files", "-z", "-v", "--stage")
        return parse_index_listing(self.run(*arguments, limit=_LISTING_LIMIT).data)

    def _show_hidden(self, listing: IndexListing) -> None:
        """Clear the flags, on the copy, with which an agent can hide its changes of files from git.

        A file that is not checked out is not deleted.
        """
        present = [path for path in listing.not_checked_out if self._size(path) is not None]
        self._copy_index()
        names = b"".join(path + b"\0" for path in (*listing.assumed_unchanged, *present))
        for option in ("--no-assume-unchanged", "--no-skip-worktree"):
            self._on_copy("update-index", option, "-z", "--stdin", stdin=names)

    def _read_objects(self, head: str) -> _Objects:
        """Read what git has; delete a damaged snapshot, which would block every later one."""
        # Before the first commit: the empty tree, which git hashes from empty input.
        committed = f"{head}^{{tree}}" if head else self.text("hash-object", "-t", "tree", "--stdin")
        try:
            if found := recovery_snapshots.find_recovery(self.text, self._ref):
                trees = (committed, f"{found.commit}^{{tree}}", f"{found.index}^{{tree}}")
                committed, files, index = self.text("rev-parse", *trees).split("\n", 2)
                return _Objects(committed, found, files, index)
        except GitError as error:
            if error.exit_code is None:  # a timeout, not a damaged snapshot
                raise
            logger.warning("the snapshot at %s is damaged and will be replaced: %s", self._ref, error)
        committed = self.text("rev-parse", committed)
        self._as_agent("rm", "--force", "--", self._git.root / self.text("rev-parse", "--git-path", self._ref))
        return _Objects(committed)

    def _update_ref(self, reason: str, status: _Status, objects: _Objects, trees: tuple[str, str]) -> Snapshot:
        """``trees`` are those of index and working tree."""
        earlier, head = objects.earlier, status.head
        dirty = bool(self._left_out) or set(trees) != {objects.committed}
        checkout = _Checkout.read(self._git.root)
        about = self._describe(checkout.branch, head)
        now = (checkout.ref, checkout.operation, head, *trees)
        if (
            earlier
            and not self._kept
            and (earlier.ref, earlier.operation, earlier.head, objects.index, objects.files) == now
        ):
            return Snapshot(self._ref, earlier.commit, dirty, changed=False, **about)
        if earlier and earlier.head and earlier.head != head and earlier.ref != checkout.ref:
            self._keep_left_branch(earlier, head)
        index = self._commit(trees[0], [head], f"Index of {self._session_id}")
        recovery = RecoverySnapshot("", head, index, self._session_id, checkout.ref, checkout.operation)
        message = recovery_snapshots.recovery_message(recovery, reason, checkout.branch)
        # Names them, so that this is another commit than the last snapshot, and is transferred with them.
        message += "".join(f"Kandev-Left: {commit}\n" for commit in self._kept)
        commit = self._commit(trees[1], [head, index], message)
        # Only if the ref still names the earlier snapshot: sessions that share a worktree share the ref, too.
        try:
            self.text("update-ref", self._ref, commit, earlier.commit if earlier else "")
        except GitError:
            if not self._was_moved(earlier):
                raise
            return self._update_ref(reason, status, self._read_objects(head), trees)
        return Snapshot(self._ref, commit, dirty, changed=True, **about)

    def _describe(self, branch: str, head: str) -> dict[str, Any]:
        """Return the fields of ``Snapshot`` about HEAD and what is left out."""
        left_out = sorted(self._left_out.items())
        return {
            "left_out": [path.decode("utf-8", "replace") for path, _ in left_out],
            "left_out_reasons": [why for _, why in left_out],
            "branch": os.fsencode(branch).decode("utf-8", "replace"),
            "head": head,
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
            self._left_out[b"commits on other branches"] = f"git cannot list them: {error.message[:_MAX_REASON]}"
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
        return self.run("commit-tree", tree, *options, "-m", message, environment=_IDENTITY).text

    def _was_moved(self, earlier: RecoverySnapshot | None) -> bool:
        """Whether another session in the same worktree has updated the ref in the meantime."""
        now = self.run("rev-parse", "--verify", "--quiet", self._ref, good=(0, 1)).text
        return now not in ("", earlier.commit if earlier else "")

    def _on_copy(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git on the copied index."""
        return self.run(*arguments, environment={"GIT_INDEX_FILE": str(self._copy)}, **options)

    def _copy_index(self) -> None:
        own = git_directory.git_directory_of(self._git.root)
        if own is None:
            raise GitError("the workspace is not a git repository")
        index = own / "index"
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

    def _leave_out_large(self, paths: Sequence[bytes]) -> None:
        for path in paths:
            if path.endswith(b"/"):
                self._left_out[path] = "it is a repository of its own"
        sizes = sorted((size, path) for path in set(paths) if (size := self._size(path)) is not None)
        total = 0
        for size, path in sizes:
            total += size
            if size > self._limits.file:
                self._left_out[path] = f"it is larger than {self._limits.file >> 20} MiB"
            elif total > self._limits.total:
                self._left_out[path] = f"all changed files together are larger than {self._limits.total >> 20} MiB"

    def _size(self, path: bytes) -> int | None:
        try:
            return (self._git.root / path.decode("utf-8", "surrogateescape")).lstat().st_size
        except OSError:
            return None

    def _add(self, paths: Sequence[bytes]) -> None:
        """Add every change that git accepts to the copied index, and leave out the rest, with the reason."""
        names = {self._excluded.get(path, path).rstrip(b"/") for path in self._left_out}
        excluded = b"".join(b":(exclude,top,literal)" + name + b"\0" for name in sorted(names))
        try:
            added = self._on_copy(*_ADD, "--ignore-errors", stdin=b".\0" + excluded, good=(0, 1))
        except GitError as error:
            if error.exit_code is None:
                raise
            self._add_in_parts([path for path in paths if path not in self._left_out])
        else:
            if added.exit_code:
                self._leave_out_unstored(added.errors)

    def _add_in_parts(self, paths: list[bytes]) -> None:
        """Add what git accepts, after it refused everything because of one file: halve until that file is alone.

        Files with the same filter are tried together, because most often it is a filter that fails.
        """
        groups = list(self._by_filter(paths).values())
        for _ in range(_MAX_ADDS):
            if not groups:
                return
            group = groups.pop(0)
            try:
                self._add_literally(group)
            except GitError as error:
                if error.exit_code is None:
                    raise
                if len(group) == 1:
                    self._left_out[group[0]] = f"git refuses it: {_reason_of(error)}"
                    continue
                middle = len(group) // 2
                groups += [group[:middle], group[middle:]]
        for path in (path for group in groups for path in group):
            self._left_out[path] = "git refuses too many files"

    def _by_filter(self, paths: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        names = b"".join(path + b"\0" for path in paths)
        fields = self._on_copy("check-attr", "-z", "--stdin", "filter", stdin=names, limit=_LISTING_LIMIT).fields
        groups: dict[bytes, list[bytes]] = {}
        for path, value in zip(fields[::3], fields[2::3], strict=False):
            groups.setdefault(value, []).append(path)
        return groups

    def _add_literally(self, paths: Sequence[bytes]) -> None:
        names = b"".join(path + b"\0" for path in paths)
        self._on_copy("--literal-pathspecs", *_ADD, stdin=names)

    def _leave_out_unstored(self, errors: str) -> None:
        """Leave out what still differs from the copied index: git could not read it."""
        why = errors.splitlines()[-1][:_MAX_REASON] if errors else "it cannot be read"
        for path in self._status(on_copy=True).unstaged:
            self._left_out.setdefault(path, f"git refuses it: {why}")


def _submodules_with(paths: Iterable[bytes], submodules: Sequence[Submodule]) -> dict[bytes, bytes]:
    """Return, for each path inside a submodule of the workspace, that submodule."""
    roots = [submodule.path for submodule in submodules]
    return {path: root for path in paths for root in roots if path.startswith(root + b"/")}


def _reason_of(error: GitError) -> str:
    known = git_failures.explain_failure(error.message)
    return (known.cause if known else error.message)[:_MAX_REASON]


def take_snapshot(
    git: WorkspaceGit,
    session_id: str,
    copy: Path,
    reason: str,
    limits: SnapshotLimits = SnapshotLimits(),
    *,
    seen: RefMemory | None = None,
) -> Snapshot:
    """Update the session's recovery ref; raises GitError, OSError.

    ``copy`` is a path for the copied index; ``seen`` is what the last snapshot of this process has seen.
    """
    try:
        return _SnapshotAttempt(git, session_id, copy, limits, seen or RefMemory()).take(reason)
    finally:
        copy.unlink(missing_ok=True)


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
            return _REPLACED_REPOSITORY if workspace.preparation is not None and is_own else ""
        # A directory that is gone as a whole is reported by the status of the workspace.
        return _NO_REPOSITORY if self._had_repository and workspace.root.is_dir() else ""

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
        if taken.changed or taken.left_out != self._left_out:
            self._left_out = taken.left_out
            about = {"ref": taken.ref, "commit": taken.commit, "reason": reason, "dirty": taken.dirty}
            named = {
                "left_out": taken.left_out[:_MAX_NAMED_FILES],
                "left_out_reasons": taken.left_out_reasons[:_MAX_NAMED_FILES],
                "left_out_count": len(taken.left_out),
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
            self._journal.append(JournalKind.LOG, level="warning", text=text, data={"error": problem[:_MAX_REASON]})
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
        return aside


def _scratch_directory(state_dir: Path) -> Path:
    """Return a directory that git can write to: as another user it cannot enter the state directory."""
    return Path(tempfile.mkdtemp(prefix="agentctl-")) if spawning.child_user_arguments() else state_dir
