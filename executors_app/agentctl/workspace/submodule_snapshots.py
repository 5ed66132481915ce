"""Save the work inside the submodules of a workspace with its snapshot, and name what cannot be saved.

The objects are copied into the repository of the workspace, checked and within limits; ``saved_submodules`` describes
the form. A submodule without work of its own is not saved: its commit can be fetched again, or the team's repository
has it. A failure costs only that submodule.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from executors_app.agentctl.workspace.left_commits import REFLOG_BYTES, left_in_reflog
from executors_app.agentctl.workspace.working_tree import MAX_REASON, SnapshotLimits, WorkingTree
from executors_app.machine.git import git_directory
from executors_app.machine.git.commit_log import count_commits
from executors_app.machine.git.endless_files import find_endless_git_file
from executors_app.machine.git.git_directory import is_branch_ref
from executors_app.machine.git.private_git_directory import common_directory_of
from executors_app.machine.git.recovery_snapshots import KEPT_PREFIX
from executors_app.machine.git.saved_submodules import (
    MAX_COMMIT_BYTES,
    MAX_COMMITS,
    MAX_OBJECTS,
    MAX_SUBMODULES,
    STASH,
    SavedSubmodule,
    copy_objects,
    is_saved_ref,
    missing_objects,
)
from executors_app.machine.git.submodules import (
    Submodule,
    SubmoduleCopy,
    find_repository,
    is_empty_submodule,
    is_plain_repository,
    is_submodule_path,
    submodule_copies,
)
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.wire.exhaustion import raise_if_exhausted

_MAX_DEPTH: Final = 100
"""Slashes in the path of a submodule that is examined."""
_MAX_NAMED: Final = 10
"""Maximum number of changed files that are named in each submodule that cannot be saved."""
_MAX_REFS: Final = 500
_MAX_OBJECT: Final = 200 << 20
"""Bytes of one object; a transfer accepts little more."""
_LIMIT: Final = 64 << 20
_SHARE: Final = 0.5
"""Part of a snapshot's time that submodules may use, and part of the rest of it that each step in one of them may."""
_MAX_LISTED: Final = 1000
"""Submodules of one repository whose directories are looked at."""


class _CannotSaveError(Exception):
    """The work in one submodule cannot be saved; the message is the reason."""


@dataclass(slots=True)
class SubmoduleWork:
    """What was saved, and what was not."""

    tree: str = ""
    """A tree with a directory for each submodule that has work of its own; empty if none has."""
    left_out: dict[bytes, str] = field(default_factory=dict)
    """Why a snapshot lacks something, by path from the root of the workspace."""
    unreadable: dict[bytes, str] = field(default_factory=dict)
    """The same for submodules that git cannot add to an index, either."""


@dataclass(slots=True)
class _Examined:
    """One submodule with its repository."""

    path: bytes
    """From the root of the workspace."""
    submodule: Submodule
    tree: WorkingTree
    head: str
    """The checked-out commit."""
    changed: Sequence[bytes]
    """Changed files: only as many as are named, because an index can list any number in each of many submodules."""
    changed_count: int
    own: Path
    modules: str
    own_commits: Sequence[str]
    """Commits that exist only here, newest first."""
    known: Mapping[str, Sequence[str]]
    """The parents of these."""
    refs: Mapping[str, str]
    has_work: bool
    around: _Examined | None = None
    failed: str = ""


class SubmoduleSaver:
    """Saves the submodules of one workspace; ``copy`` is a path for the copied index of each in turn.

    ``earlier`` is the tree of the last snapshot's submodules, which the repository of the workspace has; empty for
    none.
    """

    def __init__(self, git: WorkspaceGit, copy: Path, limits: SnapshotLimits, earlier: str):
        self._git, self._copy, self._limits, self._earlier = git, copy, limits, earlier
        self._deadline = time.monotonic() + limits.seconds * _SHARE
        self._room = limits.total
        self._work = SubmoduleWork()
        self._opened: list[WorkspaceGit] = []

    def save(self, submodules: Sequence[Submodule]) -> SubmoduleWork:
        """Save what is in these submodules, and in those inside them; raises GitError, OSError."""
        present = self._find_present(self._git, b"", submodules)
        try:
            examined = self._examine_all(present)
            for each in reversed(examined):
                if each.has_work and each.around:
                    each.around.has_work = True  # a nested one can be restored only into the one around it
            trees = [self._store_or_name(each) for each in examined if each.has_work]
            self._name_removed(present)
        finally:
            for inner in self._opened:
                inner.close()
        stored = list(filter(None, trees))
        if stored:
            self._work.tree = self._make_tree([("040000", "tree", tree, f"{n:03}") for n, tree in enumerate(stored)])
        return self._work

    def _examine_all(self, present: Sequence[Submodule]) -> list[_Examined]:
        if not present:
            return []
        # The team's repository has copies of its own submodules alone, not of those inside them.
        copies = submodule_copies(self._git)
        examined: list[_Examined] = []
        waiting: deque[tuple[_Examined | None, Submodule]] = deque((None, each) for each in present)
        while waiting:
            around, submodule = waiting.popleft()
            path, copy = submodule.path, None
            if around:
                path = around.path + b"/" + submodule.path
            else:
                copy = copies.get(os.fsdecode(submodule.path))
            if len(examined) >= MAX_SUBMODULES or path.count(b"/") > _MAX_DEPTH:
                self._work.left_out[path + b"/"] = f"only {MAX_SUBMODULES} submodules are checked for changes"
                continue
            try:
                found, nested = self._examine(path, submodule, around, copy)
            except _CannotSaveError as error:
                self._name_unreadable(path, around, str(error))
                continue
            except GitError as error:
                reason = f"it is a submodule that cannot be read: {error.message[:MAX_REASON]}"
                self._name_unreadable(path, around, reason)
                continue
            examined.append(found)
            waiting += ((found, each) for each in self._find_present(found.tree.git, path + b"/", nested))
        return examined

    def _find_present(self, outer: WorkspaceGit, prefix: bytes, submodules: Sequence[Submodule]) -> list[Submodule]:
        """Return those that have a repository; name those that have files without one, which git overlooks."""
        present = []
        if len(submodules) > _MAX_LISTED:
            self._work.left_out[prefix + b"(submodules)"] = f"only {_MAX_LISTED} submodules are checked for changes"
        for each in submodules[:_MAX_LISTED]:
            place = outer.root / os.fsdecode(each.path)
            if not is_submodule_path(each.path):
                self._work.left_out[prefix + each.path] = "it is a submodule whose path is not valid"
            elif not is_empty_submodule(outer.root, each):
                present.append(each)
            elif not place.is_symlink() and _has_entries(place):
                self._work.left_out[prefix + each.path + b"/"] = "its files are in a submodule without a repository"
        return present

    def _name_removed(self, present: Sequence[Submodule]) -> None:
        """Name the commits that exist only in the repository of a submodule whose files the agent has removed."""
        own = git_directory.git_directory_of(self._git.root)
        if own is None:
            return
        modules = own.resolve() / "modules"
        if not modules.is_dir():
            return
        places = (git_directory.git_directory_of(self._git.root / os.fsdecode(each.path)) for each in present)
        used = {place.resolve() for place in places if place is not None}
        for repository in sorted(modules.iterdir())[:MAX_SUBMODULES]:
            if repository in used or not is_plain_repository(modules, repository.name):
                continue
            if count := self._count_own_commits(repository):
                commits = count_commits(count)
                reason = f"{commits} of a removed submodule exist only in its repository, lost with the workspace"
                self._work.left_out[os.fsencode(f"modules/{repository.name}")] = reason

    def _count_own_commits(self, repository: Path) -> int:
        if find_endless_git_file(repository):
            return 0
        own = ("HEAD", "--branches", f"--glob={STASH}", "--not", "--remotes", "--tags")
        arguments = (f"--git-dir={repository}", "rev-list", "--count", *own)
        seconds = max(0.1, (self._deadline - time.monotonic()) * _SHARE)
        try:
            counted = self._git.run(*arguments, all_settings=True, timeout=seconds, good=(0, 128))
        except GitError:
            return 0
        if counted.exit_code == 0:
            return int(counted.text)
        return 0

    def _next_deadline(self) -> float:
        """Return when the next step must have ended: one that hangs leaves time for others. Raises _CannotSaveError."""
        now = time.monotonic()
        if now >= self._deadline:
            raise _CannotSaveError("the time for submodules was over")
        return now + (self._deadline - now) * _SHARE

    def _name_unreadable(self, path: bytes, around: _Examined | None, reason: str) -> None:
        if around is None:
            self._work.unreadable[path + b"/"] = reason
        else:
            around.tree.left_out[path[len(around.path) + 1 :] + b"/"] = reason
            self._work.left_out[path + b"/"] = reason

    def _examine(
        self, path: bytes, submodule: Submodule, around: _Examined | None, copy: SubmoduleCopy | None
    ) -> tuple[_Examined, Sequence[Submodule]]:
        """Look for work in one submodule; return it, and the submodules in it. Raises _CannotSaveError, GitError."""
        outer = self._git
        if around:
            outer = around.tree.git
        try:
            own, modules = find_repository(outer.root, submodule.path)
        except (ValueError, OSError) as error:
            raise _CannotSaveError(str(error)) from error
        inner = self._git.inside(outer.root / os.fsdecode(submodule.path))
        self._opened.append(inner)
        tree = WorkingTree(inner, self._copy, self._limits, self._next_deadline())
        try:
            listing = tree.read_listing()
            status = tree.read_status(listing)
        finally:
            tree.close()
        if inner.private.settings_problem:  # git would read them, too, when the files around it are added
            raise _CannotSaveError("it is a submodule whose settings cannot be read")
        if not status.head:
            if status.changed:
                raise _CannotSaveError("it is a submodule without a commit")
            refs: Mapping[str, str] = {}
            return _Examined(path, submodule, tree, "", (), 0, own, modules, (), {}, refs, False, around), ()
        refs = _own_refs(tree, own)
        commits, parents = _own_commits(tree, status.head, refs, copy)
        is_at_commit = status.head == submodule.commit
        has_work = bool(status.changed or commits or tree.left_out) or not is_at_commit
        changed = (status.head, status.changed[:_MAX_NAMED], len(status.changed))
        found = _Examined(path, submodule, tree, *changed, own, modules, commits, parents, refs, has_work, around)
        return found, listing.submodules

    def _store_or_name(self, found: _Examined) -> str:
        """Store one submodule, and return its directory's tree; empty if that is not possible, which is then named."""
        try:
            if found.around and found.around.failed:
                raise _CannotSaveError("the submodule around it cannot be saved")
            stored = self._store(found)
        except (_CannotSaveError, GitError, OSError) as error:
            why = str(error)
            if isinstance(error, GitError):
                why = error.message
            found.failed = f"this work inside a submodule cannot be saved: {why[:MAX_REASON]}"
            for name, reason in _name_changed_files(found.changed, found.changed_count, found.failed).items():
                self._work.left_out[found.path + b"/" + name] = reason
            return ""
        for name, reason in found.tree.left_out.items():
            self._work.left_out[found.path + b"/" + name] = reason
        if len(found.own_commits) > MAX_COMMITS:
            self._work.left_out[found.path + b"/"] = f"only {MAX_COMMITS} commits of a submodule are saved"
        return stored

    def _store(self, found: _Examined) -> str:
        head = found.head
        # Another one, because the index was copied to the same place for other submodules since.
        tree = WorkingTree(found.tree.git, self._copy, self._limits, self._next_deadline())
        tree.left_out = found.tree.left_out
        try:
            status = tree.read_status(tree.read_listing())
            index, files = tree.write(status, tree.text("rev-parse", f"{head}^{{tree}}"))
        finally:
            tree.close()
        own = found.own_commits[:MAX_COMMITS]
        ends: set[str] = set()
        for commit in own:
            ends.update(found.known[commit])
        commits = list(dict.fromkeys([head, *own, *sorted(ends)]))
        names = "".join(f"{commit}\n" for commit in commits).encode()
        output = tree.run("cat-file", "--batch", stdin=names, limit=MAX_COMMIT_BYTES)
        if output.truncated:
            raise _CannotSaveError("its commits are too large")
        tips = "".join(f"{commit}^{{tree}}\n" for commit in commits).encode()
        trees = tree.text("cat-file", "--batch-check=%(objectname)", stdin=tips).split("\n")
        saved_refs = _refs_at(found.refs, branch_commits=set(commits), other_commits=set(own))
        checked_out = git_directory.read_head(found.own).branch
        if checked_out:
            checked_out = f"{git_directory.BRANCH_PREFIX}{checked_out}"
        saved = SavedSubmodule(
            found.path,
            head,
            checked_out,
            files,
            index,
            saved_refs,
            found.modules,
            output.data,
            tuple(trees),
        )
        self._copy_trees(tree, (files, index, *trees))
        return self._make_directory(saved, commits)

    def _copy_trees(self, tree: WorkingTree, roots: Sequence[str]) -> None:
        """Copy the trees with everything in them into the repository of the workspace, within the limits."""
        own = git_directory.git_directory_of(self._git.root)
        assert own is not None, "it is the repository in which git has just run"  # noqa: S101
        both = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(common_directory_of(own) / "objects")}
        arguments = ["rev-list", "--objects", "--no-object-names", *dict.fromkeys(roots)]
        if self._earlier:
            arguments += ["--not", self._earlier]
        listed = tree.run(*arguments, environment=both, limit=_LIMIT)
        names = missing_objects(self._git, listed.text.splitlines())
        if listed.truncated or len(names) > MAX_OBJECTS:
            raise _CannotSaveError(f"it has more than {MAX_OBJECTS} files")
        if not names:
            return
        lines = "".join(f"{name}\n" for name in names).encode()
        reported = tree.text("cat-file", "--batch-check=%(objectsize)", stdin=lines, limit=_LIMIT).split("\n")
        sizes = [int(size) for size in reported if size.isdecimal()]
        if len(sizes) != len(names):
            raise _CannotSaveError("its repository is not complete")
        if max(sizes) > _MAX_OBJECT:
            raise _CannotSaveError(f"a file in it is larger than {_MAX_OBJECT >> 20} MiB")
        if sum(sizes) > self._room:
            raise _CannotSaveError(f"submodules contain more than {self._limits.total >> 20} MiB")
        copy_objects(tree.git, self._git, names, tree.remaining)
        self._room -= sum(sizes)

    def _make_directory(self, saved: SavedSubmodule, commits: Sequence[str]) -> str:
        about = self._make_blob(saved.describe())
        texts = self._make_blob(saved.commits)
        pairs = zip(saved.trees, commits, strict=True)
        trees = self._make_tree([("040000", "tree", tree, commit) for tree, commit in pairs])
        return self._make_tree(
            [
                ("100644", "blob", about, "about"),
                ("100644", "blob", texts, "commits"),
                ("040000", "tree", saved.files, "files"),
                ("040000", "tree", saved.index, "index"),
                ("040000", "tree", trees, "trees"),
            ]
        )

    def _make_blob(self, content: bytes) -> str:
        return self._git.run("hash-object", "-w", "--stdin", stdin=content).text

    def _make_tree(self, entries: Sequence[tuple[str, str, str, str]]) -> str:
        lines = "".join(f"{mode} {kind} {name}\t{label}\n" for mode, kind, name, label in entries)
        return self._git.run("mktree", stdin=lines.encode()).text


def _refs_at(refs: Mapping[str, str], branch_commits: set[str], other_commits: set[str]) -> dict[str, str]:
    """Return the branches that are at one set of commits, and the other refs that are at another one."""
    stored = {}
    for name, commit in refs.items():
        commits = branch_commits
        if not is_branch_ref(name):
            commits = other_commits
        if commit in commits:
            stored[name] = commit
    return stored


def _has_entries(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is not None
    except OSError as error:
        raise_if_exhausted(error)
        return False


def _own_refs(tree: WorkingTree, own: Path) -> dict[str, str]:
    """Return branches, the stash, and commits that were left, by the name under which each is saved."""
    options = (f"--count={_MAX_REFS}", "--sort=-committerdate", "--format=%(objectname) %(refname)")
    lines = tree.text("for-each-ref", *options, git_directory.BRANCH_PREFIX, STASH).splitlines()
    named = {name: commit for commit, name in (line.split(" ", 1) for line in lines)}
    reflog = git_directory.read_file_end(own / "logs" / "HEAD", REFLOG_BYTES) or b""
    left = list(left_in_reflog(reflog))[-_MAX_REFS:]
    refs = {f"{KEPT_PREFIX}{commit[:16]}": commit for commit in left} | named
    return {name: commit for name, commit in refs.items() if is_saved_ref(name)}


def _own_commits(
    tree: WorkingTree, head: str, refs: Mapping[str, str], copy: SubmoduleCopy | None
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the commits that cannot be fetched again, newest first, with their parents.

    The others are on a remote branch, or in the team's copy. One more than can be saved is returned.
    """
    arguments = ("rev-list", "--ignore-missing", "--topo-order", "--parents", f"--max-count={MAX_COMMITS + 1}")
    tips = dict.fromkeys([head, *refs.values()])
    listed = tree.run(*arguments, *tips, "--not", "--remotes", "--", limit=_LIMIT).text.splitlines()
    parents = {line.split(" ")[0]: line.split(" ")[1:] for line in listed}
    if copy is None or not parents:
        return list(parents), parents
    lines = "".join(f"{commit}\n" for commit in parents).encode()
    objects = {"GIT_OBJECT_DIRECTORY": str(copy.path / "objects")}
    listed = tree.text("cat-file", "--batch-check=%(objectname)", stdin=lines, environment=objects).split("\n")
    own = [line.split(" ")[0] for line in listed if line.endswith(" missing")]
    return own, parents


def _name_changed_files(paths: Sequence[bytes], count: int, reason: str) -> dict[bytes, str]:
    """Return the first changed files with the reason, and the submodule for the others of this count."""
    named = dict.fromkeys(paths, reason)
    rest = count - len(named)
    if not paths:
        return {b"": reason}
    if rest > 0:
        return {**named, b"": f"{reason} ({rest} more)"}
    return named
