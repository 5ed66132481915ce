"""Takes a recovery snapshot: the working tree, untracked files included, as commits under a hidden ref.

The user's index, HEAD and branch stay untouched: all is done on a copy of the index, which keeps its
time, or git would take a file for unchanged that was edited in the second in which it was staged.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl import recovery_ref, two_users
from executors_app.agentctl.recovery_ref import Recovery
from executors_app.agentctl.workspace.git import Git, GitFailed

logger = logging.getLogger(__name__)

_IDENTITY: Final = {
    **{f"GIT_{role}_NAME": "Kandev" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "kandev@localhost" for role in ("AUTHOR", "COMMITTER")},
}
_LISTING_LIMIT: Final = 64 << 20
_UNMERGED: Final = 128


@dataclass(frozen=True, slots=True)
class Limits:
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


class _Taking:
    """One snapshot being taken on a copy of the index at ``copy``."""

    def __init__(self, git: Git, copy: Path, limits: Limits):
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
        ref = recovery_ref.ref_of(session_id)
        earlier = self._earlier(ref)
        dirty = bool(left_out) or {trees.index, trees.files} != {trees.committed}
        names = [path.decode("utf-8", "replace") for path in left_out]
        if earlier and _same(self.text, earlier, trees):
            return Snapshot(ref, earlier.commit, dirty, changed=False, left_out=names)
        index = self.commit(trees.index, [trees.head], f"Index of {session_id}")
        recovery = Recovery("", trees.head, index, session_id)
        message = recovery_ref.message_of(recovery, reason, self.branch())
        commit = self.commit(trees.files, [trees.head, index], message)
        try:
            self.text("update-ref", ref, commit, earlier.commit if earlier else "")
        except GitFailed:
            if not self._was_moved(ref, earlier):
                raise
            return self.keep(session_id, reason, trees, left_out)
        return Snapshot(ref, commit, dirty, changed=True, left_out=names)

    def _was_moved(self, ref: str, earlier: Recovery | None) -> bool:
        """Another session that works in the same worktree has kept it meanwhile."""
        now = str(self.run("rev-parse", "--verify", "--quiet", ref, good=(0, 1)).text)
        return now not in ("", earlier.commit if earlier else "")

    def _earlier(self, ref: str) -> Recovery | None:
        """The present snapshot; one that is damaged is let go, or it would be in the way of every later one."""
        try:
            found = recovery_ref.find(self.text, ref)
            if found:
                self.text("rev-parse", f"{found.commit}^{{tree}}", f"{found.index}^{{tree}}")
                return found
        except GitFailed as error:
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
            subprocess.run(command, check=True, capture_output=True, timeout=left, **two_users.of_children())
        except (OSError, subprocess.SubprocessError) as error:
            raise GitFailed(f"{command[0]} failed in the repository of the workspace") from error

    def _index_tree(self, committed: str) -> str:
        """The index as a tree; in the middle of a merge, where it has none, HEAD's."""
        try:
            return self.text("write-tree")
        except GitFailed as error:
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


def take(git: Git, session_id: str, copy: Path, reason: str, limits: Limits = Limits()) -> Snapshot:
    """Bring the session's recovery ref up to date; raises GitFailed, OSError. ``copy``: a path of our own."""
    taking = _Taking(git, copy, limits)
    try:
        trees, left_out = taking.trees()
        return taking.keep(session_id, reason, trees, left_out)
    finally:
        copy.unlink(missing_ok=True)


def _same(text: Callable[..., str], earlier: Recovery, trees: _Trees) -> bool:
    look = partial(text, "rev-parse")
    return earlier.head == trees.head and look(f"{earlier.commit}^{{tree}}", f"{earlier.index}^{{tree}}") == (
        f"{trees.files}\n{trees.index}"
    )
