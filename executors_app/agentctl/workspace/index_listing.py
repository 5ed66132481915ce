"""What the index of a workspace hides from ``git status``: flagged files, and changes inside submodules."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_directory
from executors_app.machine.git.private_git_directory import common_directory_of
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

_SKIP_WORKTREE: Final = b"S"
_GITLINK: Final = b"160000"
_MAX_SUBMODULES: Final = 100
_MAX_DEPTH: Final = 100
"""Slashes in the path of a submodule that is examined."""
_MAX_NAMED: Final = 10
"""Maximum number of changed files that are named in each submodule."""
_FIELDS_BEFORE_PATH: Final = {b"?": 1, b"1": 8, b"u": 10}
_MODULE_NAME: Final = re.compile(r"submodule\.(?P<name>[A-Za-z0-9][A-Za-z0-9_./ -]{0,199})\.path")
_STATUS_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Submodule:
    """A commit of another repository in the index."""

    path: bytes
    commit: str


@dataclass(frozen=True, slots=True)
class SubmoduleCopy:
    """The repository of a submodule inside the team's repository."""

    name: str
    path: Path

    def exists(self) -> bool:
        """Whether it is a repository at this path, and not a link to another one."""
        resolved = self.path.resolve()
        is_inside = resolved == self.path.parent.resolve() / self.path.name
        return is_inside and (self.path / "HEAD").is_file() and not (self.path / "objects").is_symlink()


@dataclass(frozen=True, slots=True)
class IndexListing:
    """What an index says about files beyond their content."""

    assumed_unchanged: Sequence[bytes] = ()
    """Files that git is told not to examine."""
    not_checked_out: Sequence[bytes] = ()
    """Files that need not be in the working tree (``skip-worktree``)."""
    submodules: Sequence[Submodule] = ()


def path_of_entry(entry: bytes) -> bytes:
    """Return the path in an entry of ``git status --porcelain=v2 --no-renames``."""
    return entry.split(b" ", _FIELDS_BEFORE_PATH[entry[:1]])[-1]


def parse_index_listing(listed: bytes) -> IndexListing:
    """Parse ``git ls-files -z -v --stage``: ``TAG MODE OBJECT STAGE<tab>PATH``."""
    assumed_unchanged, not_checked_out, submodules = [], [], []
    for entry in listed.split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        tag, mode, commit, _ = about.split(b" ", 3)
        if mode == _GITLINK:
            submodules.append(Submodule(path, commit.decode("ascii", "replace")))
        elif tag.upper() == _SKIP_WORKTREE:
            not_checked_out.append(path)
        elif tag.islower():
            assumed_unchanged.append(path)
    return IndexListing(assumed_unchanged, not_checked_out, submodules)


def is_empty_submodule(root: Path, submodule: Submodule) -> bool:
    """Whether a submodule was not initialised: its directory has no repository."""
    return not os.path.lexists(root / os.fsdecode(submodule.path) / ".git")


def find_submodule_changes(git: WorkspaceGit, submodules: Sequence[Submodule]) -> dict[bytes, str]:
    """Return why a snapshot of the workspace does not have everything in its submodules, by path.

    Each one is read with allowed settings only, as the workspace itself, and so are the submodules inside it: ``git
    status`` would start one git per submodule with all of that repository's settings.
    """
    found: dict[bytes, str] = {}
    present = [each for each in submodules if not is_empty_submodule(git.root, each)]
    waiting = deque((git, b"", submodule) for submodule in present)
    inside: list[WorkspaceGit] = []
    copies = submodule_copies(git) if present else {}
    examined = 0
    try:
        while waiting:
            outer, prefix, submodule = waiting.popleft()
            path = prefix + submodule.path
            if examined >= _MAX_SUBMODULES or path.count(b"/") > _MAX_DEPTH:
                found[path + b"/"] = f"only {_MAX_SUBMODULES} submodules are checked for changes"
                continue
            examined += 1
            # The team's repository has copies of its own submodules alone, not of those inside them.
            copy = copies.get(os.fsdecode(submodule.path)) if outer is git else None
            inner = outer.inside(outer.root / os.fsdecode(submodule.path))
            inside.append(inner)
            changes, nested = _changes_of(inner, submodule, copy)
            found |= {path + b"/" + name: why for name, why in changes.items()}
            waiting += ((inner, path + b"/", each) for each in nested)
    finally:
        for inner in inside:
            inner.close()
    return found


def submodule_copies(git: WorkspaceGit) -> Mapping[str, SubmoduleCopy]:
    """Return the copies of submodules in the team's repository, by path.

    git keeps the repositories of submodules under their names, which an agent can choose.
    """
    own = git_directory.linked_git_directory(git.root)
    if own is None:
        return {}
    pattern = ("config", "--file", ".gitmodules", "--no-includes", "--get-regexp", "-z", r"^submodule\..*\.path$")
    try:
        fields = git.run(*pattern, good=(0, 1)).fields
    except GitError:
        return {}  # .gitmodules is invalid, or not a file
    copies = {}
    for entry in fields:
        key, _, path = entry.decode("utf-8", "surrogateescape").partition("\n")
        found = _MODULE_NAME.fullmatch(key)
        if found and ".." not in found["name"].split("/"):
            copy = SubmoduleCopy(found["name"], common_directory_of(own) / "modules" / found["name"])
            if copy.exists():
                copies[path] = copy
    return copies


def _changes_of(
    inner: WorkspaceGit, submodule: Submodule, copy: SubmoduleCopy | None
) -> tuple[dict[bytes, str], list[Submodule]]:
    """Return what a snapshot lacks of a submodule, by paths in it (empty: the submodule), and the submodules in it."""
    if git_directory.git_directory_of(inner.root) is None:
        return {b"": "it is a submodule whose repository cannot be read"}, []
    try:
        which = ("--untracked-files=normal", "--ignore-submodules=dirty", "--no-renames")
        output = inner.compare(
            "status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", *which, limit=_STATUS_LIMIT
        )
        listing = parse_index_listing(inner.run("ls-files", "-z", "-v", "--stage", limit=_STATUS_LIMIT).data)
        is_elsewhere = _is_elsewhere(inner, submodule.commit, copy)
    except GitError as error:
        return {b"": f"it is a submodule that cannot be read: {error.message[:200]}"}, []
    nested = [each for each in listing.submodules if not is_empty_submodule(inner.root, each)]
    changes = _name_changed_files([field for field in output.fields if not field.startswith(b"#")])
    head = f"# branch.oid {submodule.commit}".encode()
    if not changes and (head not in output.fields or not is_elsewhere):
        changes[b""] = "commits inside a submodule are not part of a snapshot"
    return changes, nested


_CHANGED: Final = "changes inside a submodule are not part of a snapshot"


def _name_changed_files(entries: Sequence[bytes]) -> dict[bytes, str]:
    """Return each changed file with the reason; of many, the first ones, and the submodule for the others."""
    named = {path_of_entry(entry): _CHANGED for entry in entries[:_MAX_NAMED]}
    rest = len(entries) - len(named)
    return {**named, b"": f"{_CHANGED} ({rest} more)"} if rest > 0 else named


def _is_elsewhere(inner: WorkspaceGit, commit: str, copy: SubmoduleCopy | None) -> bool:
    """Whether a submodule's commit can be fetched again: it is on a remote branch, or in the team's copy."""
    if not inner.run("rev-list", "--max-count=1", commit, "--not", "--remotes", "--", good=(0, 128)).data:
        return True
    if copy is None:
        return False
    objects = {"GIT_OBJECT_DIRECTORY": str(copy.path / "objects")}
    return inner.run("cat-file", "-e", commit, environment=objects, good=(0, 1, 128)).exit_code == 0
