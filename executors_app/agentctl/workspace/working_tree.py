"""Write the index and the files of a working tree as trees, on a copy of its index, so that its own never changes.

What git refuses is left out, with the reason. Used for a workspace, and for each submodule in it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace.index_listing import IndexListing, parse_index_listing, path_of_entry
from executors_app.machine.git import git_directory, git_failures
from executors_app.machine.git.endless_files import (
    find_endless_file,
    find_endless_file_below,
    find_pipes,
    find_pipes_below,
    find_pipes_beside,
    find_unanswered_file,
)
from executors_app.machine.git.submodules import is_empty_submodule
from executors_app.machine.git.workspace_git import GitError, GitOutput, WorkspaceGit
from executors_app.machine.process import spawning

_LISTING_LIMIT: Final = 64 << 20
_UNMERGED: Final = 128
_GITLINK: Final = b"160000"
_EVERY_FILE: Final = ("-c", "core.sparseCheckout=false")
"""An agent may have changed files outside of a sparse checkout: git refuses to add them, and lists no flags of them."""
_ADD: Final = (*_EVERY_FILE, "add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
_MAX_ADDS: Final = 100
"""Attempts to add files of which git refuses some."""
_SHARE: Final = 0.8
"""Part of the time after which git counts as waiting for a pipe somewhere in the workspace."""
MAX_REASON: Final = 200
"""Characters of git's message in a reason."""
_CONVERSION: Final = re.compile(r"(?:CR)?LF will be replaced by (?:CR)?LF")
"""What git warns of when a file would return from the repository with other line ends."""
_UNREADABLE_DIRECTORY: Final = re.compile(r"^warning: could not open directory '([^'\n]+)'", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Limits of one snapshot: sizes in bytes, times in seconds."""

    file: int = 50 << 20
    """Larger files are left out and listed."""
    total: int = 500 << 20
    """Total of all changed files; beyond it the largest are left out. As much again for what submodules contain."""
    seconds: float = 60.0
    turn_waits: float = 5.0
    """Maximum wait before a turn; a slower snapshot continues during the turn."""
    end_waits: float = 20.0
    """Maximum wait before agentctl ends."""


DEFAULT_LIMITS: Final = SnapshotLimits()


@dataclass(frozen=True, slots=True)
class TreeStatus:
    """What git reports about index and working tree."""

    head: str
    """The checked-out commit; empty before the first."""
    is_staged: bool
    """Whether the index may differ from the commit."""
    unstaged: Sequence[bytes]
    """Paths of modified and untracked files, and of nested repositories, which end with a slash."""
    changed: Sequence[bytes]
    """Paths of all files that differ from the commit, staged or not."""
    ignored_count: int = 0
    """Files and directories that ``.gitignore`` names; of what is in such a directory, nothing is counted."""

    @classmethod
    def parse(cls, fields: Sequence[bytes]) -> TreeStatus:
        """Parse ``git status --porcelain=v2 -z --branch --no-renames --ignored=matching``."""
        headers = dict(field.decode("utf-8", "replace").split(" ")[1:3] for field in fields if field.startswith(b"# "))
        head = headers.get("branch.oid", "")
        if head == "(initial)":
            head = ""
        entries = [field for field in fields if not field.startswith((b"#", b"!"))]
        ignored_count = sum(field.startswith(b"!") for field in fields)
        unstaged = [_path_to_add(entry) for entry in entries if entry.startswith((b"?", b"u")) or entry[3:4] != b"."]
        is_staged = any(entry.startswith(b"u") or entry[2:3] != b"." for entry in entries if entry[:1] != b"?")
        changed = [path_of_entry(entry) for entry in entries]
        return cls(head, is_staged, unstaged, changed, ignored_count)


def _path_to_add(entry: bytes) -> bytes:
    """Return the path in an entry; with a slash for a repository in place of a file, as status names untracked ones."""
    path = path_of_entry(entry)
    if entry.startswith(b"?"):
        return path
    modes = entry.split(b" ")
    if entry.startswith(b"u"):
        index, now = (modes[3:6], modes[6])
    else:
        index, now = (modes[4:5], modes[5])
    if now == _GITLINK and _GITLINK not in index:
        return path + b"/"
    return path


class WorkingTree:
    """One working tree that is being written; ``copy`` is a path for the copied index.

    Each git process takes milliseconds, and turns and restarts wait for snapshots, so there are few.
    """

    def __init__(self, git: WorkspaceGit, copy: Path, limits: SnapshotLimits, deadline: float):
        self.git, self._copy, self._limits, self._deadline = git, copy, limits, deadline
        self.left_out: dict[bytes, str] = {}
        """Paths that are not stored, with the reasons."""
        self.converts_line_ends = False
        """Whether files that were changed would return with other line ends."""
        self._has_copy = False
        self._submodules: set[bytes] = set()
        self._endless: list[bytes] = []
        """Submodules into which git must not look, because it would not come back."""

    def run(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git within the remaining time."""
        return self.git.run(*arguments, timeout=self.remaining, **options)

    def text(self, *arguments: str, **options: Any) -> str:
        """``run``, and return the output as text."""
        return self.run(*arguments, **options).text

    @property
    def remaining(self) -> float:
        """Seconds that are left for git."""
        return max(0.1, self._deadline - time.monotonic())

    def read_listing(self) -> IndexListing:
        """Read what the index says about files beyond their content; raises GitError if git cannot list the files."""
        if self.git.is_submodule:
            endless = find_endless_file(self.git.root)
        else:
            endless = find_unanswered_file(self.git.root)
        if endless:
            raise GitError(f"git would wait for a pipe or device: {endless}")
        listing = parse_index_listing(self._list_index())
        self._submodules = {each.path for each in listing.submodules if not is_empty_submodule(self.git.root, each)}
        self._leave_out_endless()
        return listing

    def read_status(self, listing: IndexListing) -> TreeStatus:
        """Compare files, index and commit, with those that flags in the index hide."""
        if listing.assumed_unchanged or listing.not_checked_out:
            self._show_hidden(listing)
        if self._endless:
            self._hide_endless()
        status = self._status_despite_pipes()
        if not self.git.is_submodule:
            # git reads the attributes only of directories in which it adds files.
            found = [*self.git.pipes_below, *find_pipes_beside(self.git.root, status.unstaged)]
            self.git.pipes_below = [pipe for pipe in dict.fromkeys(found) if pipe.is_fifo()]
            for pipe in (*find_pipes(self.git.root), *self.git.pipes_below):
                name = os.fsencode(pipe.relative_to(self.git.root))
                self.left_out[name] = "it is a pipe, which git reads as an empty file"
        return status

    def _status_despite_pipes(self) -> TreeStatus:
        """Return the status; if git waits for pipes in the workspace, once more with these answered."""
        seconds = self.remaining
        if not self.git.is_submodule:
            seconds *= _SHARE
        try:
            return self._status(seconds)
        except GitError as error:
            if error.exit_code is not None:
                raise
            failed = error
        if not self.git.is_submodule and (pipes := find_pipes_below(self.git.root)):
            self.git.pipes_below = pipes
            return self._status(self.remaining)
        if endless := find_endless_file_below(self.git.root):
            raise GitError(f"{failed.message}: it waits for a pipe or device, {endless}") from failed
        raise failed

    def write(self, status: TreeStatus, committed: str) -> tuple[str, str]:
        """Write index and files into the object store, and return their trees; ``committed`` is that of the commit."""
        if not status.is_staged and not status.unstaged:
            return committed, committed
        self._copy_index()
        index = committed
        if status.is_staged:
            index = self._index_tree(committed)
        self._leave_out_large(status.unstaged)
        self._add(status.unstaged)
        return index, self._on_copy("write-tree").text

    def as_agent(self, *command: str | Path) -> None:
        """Run a command with the agent's rights, on paths that the agent could replace by links; raises GitError."""
        try:
            subprocess.run(
                command, check=True, capture_output=True, timeout=self.remaining, **spawning.child_user_arguments()
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"{command[0]} failed in the repository of the workspace") from error

    def close(self) -> None:
        """Remove the copied index."""
        self._copy.unlink(missing_ok=True)

    def _status(self, seconds: float) -> TreeStatus:
        # Whatever .gitmodules says, everything that ``git add`` would take is listed.
        which = ("--untracked-files=all", "--ignored=matching", "--ignore-submodules=dirty", "--no-renames")
        arguments = ("status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", *which)
        environment = {}
        if self._has_copy:
            environment["GIT_INDEX_FILE"] = str(self._copy)
        output = self.git.compare(*arguments, environment=environment, limit=_LISTING_LIMIT, timeout=seconds)
        for name in _UNREADABLE_DIRECTORY.findall(output.errors):
            self.left_out[os.fsencode(name)] = "the directory cannot be read"
        return TreeStatus.parse(output.fields)

    def _show_hidden(self, listing: IndexListing) -> None:
        """Clear the flags, on the copy, with which an agent can hide its changes of files from git.

        A file that is not checked out is not deleted.
        """
        present = [path for path in listing.not_checked_out if self._size(path) is not None]
        self._copy_index()
        names = b"".join(path + b"\0" for path in (*listing.assumed_unchanged, *present))
        for option in ("--no-assume-unchanged", "--no-skip-worktree"):
            self._on_copy("update-index", option, "-z", "--stdin", stdin=names)

    def _list_index(self) -> bytes:
        """Return the entries of the index; one that git cannot read costs only what is staged."""
        arguments = (*_EVERY_FILE, "ls-files", "-z", "-v", "--stage")
        try:
            return self.run(*arguments, limit=_LISTING_LIMIT).data
        except GitError as error:
            if error.failure != "damaged_index":
                raise
        self.left_out[b"staged changes"] = "git's index is damaged"
        self._has_copy = True
        self._remove_copy()
        head = self.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1)).text
        self._on_copy("read-tree", head or "--empty")
        return self._on_copy(*arguments, limit=_LISTING_LIMIT).data

    def _leave_out_endless(self) -> None:
        for path in sorted(self._submodules):
            endless = find_endless_file(self.git.root / os.fsdecode(path), with_refs=True)
            if endless:
                self._endless.append(path)
                self.left_out[path + b"/"] = (
                    f"it is a submodule with a pipe or device that git would wait for: {endless}"
                )

    def _hide_endless(self) -> None:
        """Let git assume, on the copy, that these submodules are unchanged: otherwise it would look into them."""
        self._copy_index()
        names = b"".join(path + b"\0" for path in self._endless)
        self._on_copy("update-index", "--assume-unchanged", "-z", "--stdin", stdin=names)

    def _on_copy(self, *arguments: str, **options: Any) -> GitOutput:
        """Run git on the copied index."""
        return self.run(*arguments, environment={"GIT_INDEX_FILE": str(self._copy)}, **options)

    def _copy_index(self) -> None:
        if self._has_copy:
            return
        own = git_directory.git_directory_of(self.git.root)
        if own is None:
            raise GitError("the workspace is not a git repository")
        index = own / "index"
        self._remove_copy()
        if index.is_file():
            self.as_agent("cp", "--preserve=timestamps", "--no-target-directory", "--", index, self._copy)
        self._has_copy = True

    def _remove_copy(self) -> None:
        for stale in (self._copy, self._copy.with_name(f"{self._copy.name}.lock")):
            stale.unlink(missing_ok=True)

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
                self.left_out[path] = "it is a repository of its own"
        sizes = sorted((size, path) for path in set(paths) if (size := self._size(path)) is not None)
        total = 0
        for size, path in sizes:
            total += size
            if size > self._limits.file:
                self.left_out[path] = f"it is larger than {self._limits.file >> 20} MiB"
            elif total > self._limits.total:
                self.left_out[path] = f"all changed files together are larger than {self._limits.total >> 20} MiB"

    def _size(self, path: bytes) -> int | None:
        try:
            return (self.git.root / path.decode("utf-8", "surrogateescape")).lstat().st_size
        except OSError:
            return None

    def _add(self, paths: Sequence[bytes]) -> None:
        """Add every change that git accepts to the copied index, and leave out the rest, with the reason."""
        # git would run its status inside a submodule, with the filters that the submodule's settings name.
        moved = [path for path in paths if path in self._submodules and not {path, path + b"/"} & self.left_out.keys()]
        self._stage_in_parts([moved], self._stage_submodules)
        names = {path.rstrip(b"/") for path in self.left_out} | self._submodules
        excluded = b"".join(b":(exclude,top,literal)" + name + b"\0" for name in sorted(names))
        try:
            added = self._on_copy(*_ADD, "--ignore-errors", stdin=b".\0" + excluded, good=(0, 1))
        except GitError as error:
            if error.exit_code is None:
                raise
            rest = [path for path in paths if path not in self.left_out and path not in self._submodules]
            # Files with the same filter are tried together, because most often it is a filter that fails.
            self._stage_in_parts(self._by_filter(rest).values(), self._add_literally)
        else:
            self._note_conversion(added)
            if added.exit_code:
                self._leave_out_unstored(added.errors)

    def _stage_in_parts(self, paths: Iterable[list[bytes]], stage: Callable[[Sequence[bytes]], None]) -> None:
        """Stage what git accepts: it refuses a group because of one path, so halve the group until that is alone."""
        groups = [group for group in paths if group]
        for _ in range(_MAX_ADDS):
            if not groups:
                return
            group = groups.pop(0)
            try:
                stage(group)
            except GitError as error:
                if error.exit_code is None:
                    raise
                if len(group) == 1:
                    self.left_out[group[0]] = f"git refuses it: {_reason_of(error)}"
                    continue
                middle = len(group) // 2
                groups += [group[:middle], group[middle:]]
        for group in groups:
            for path in group:
                self.left_out[path] = "git refuses too many files"

    def _by_filter(self, paths: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        names = b"".join(path + b"\0" for path in paths)
        fields = self._on_copy("check-attr", "-z", "--stdin", "filter", stdin=names, limit=_LISTING_LIMIT).fields
        groups: dict[bytes, list[bytes]] = {}
        for path, value in zip(fields[::3], fields[2::3], strict=False):
            groups.setdefault(value, []).append(path)
        return groups

    def _add_literally(self, paths: Sequence[bytes]) -> None:
        names = b"".join(path + b"\0" for path in paths)
        self._note_conversion(self._on_copy("--literal-pathspecs", *_ADD, stdin=names))

    def _note_conversion(self, added: GitOutput) -> None:
        self.converts_line_ends |= _CONVERSION.search(added.errors) is not None

    def _stage_submodules(self, paths: Sequence[bytes]) -> None:
        """Write the checked-out commits of submodules; one whose directory was just removed is deleted."""
        stdin = b"".join(path + b"\0" for path in paths)
        self._on_copy("update-index", "--remove", "-z", "--stdin", stdin=stdin)

    def _leave_out_unstored(self, errors: str) -> None:
        """Leave out what still differs from the copied index: git could not read it."""
        why = "it cannot be read"
        if errors:
            why = errors.splitlines()[-1][:MAX_REASON]
        for path in self._status(self.remaining).unstaged:
            self.left_out.setdefault(path, f"git refuses it: {why}")


def _reason_of(error: GitError) -> str:
    if known := git_failures.explain_failure(error.message):
        return known.cause[:MAX_REASON]
    return error.message[:MAX_REASON]
