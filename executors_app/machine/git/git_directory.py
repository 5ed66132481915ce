"""The small files by which git finds a repository, a worktree and a branch, read as plain files and without git.

The only parser of worktree pointers and HEADs. Whatever is in such a file may have been written by an agent: what
cannot be parsed is an error or *unknown*, and never a guess.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.wire.exhaustion import raise_if_exhausted

POINTER_LIMIT: Final = 8192
"""Bytes of a pointer or a HEAD that are read; git itself allows a path of 4,096."""
GITDIR_PREFIX: Final = "gitdir: "
_MAX_RECORDS: Final = 10_000
_REF: Final = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
BRANCH_PREFIX: Final = "refs/heads/"

_OPERATIONS: Final = {
    "rebase-merge": "rebase",
    "rebase-apply/applying": "am",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
OPERATION_NAMES: Final = frozenset(_OPERATIONS.values())
"""What ``operation_in_progress`` may return."""


class InvalidPointer(ValueError):
    """A file does not contain the path that git expects there."""


def read_git_file(path: Path) -> bytes | None:
    """Return the content of a small regular file; None if there is none, or if it is longer than a pointer can be."""
    content = read_file_end(path, POINTER_LIMIT + 1)
    if content is not None and len(content) <= POINTER_LIMIT:
        return content
    return None


def read_file_end(path: Path, limit: int) -> bytes | None:
    """Return the last ``limit`` bytes of a regular file; None if there is no readable one."""
    try:
        # O_NONBLOCK, because opening a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise_if_exhausted(error)
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return None
        return os.pread(descriptor, limit, max(0, about.st_size - limit))
    except OSError as error:
        raise_if_exhausted(error)
        return None
    finally:
        os.close(descriptor)


def parse_pointer(content: bytes | None, base: Path, prefix: str = "") -> Path:
    """Return the path that a pointer names; since git 2.48 it may be relative to ``base``, the pointer's directory.

    ``prefix`` is ``GITDIR_PREFIX`` for a ``.git`` file, and empty for ``gitdir`` and ``commondir``. As in git, only
    line ends are cut off: a path may end with a space. Raises InvalidPointer.
    """
    text = os.fsdecode(content or b"").rstrip("\r\n")
    place = text.removeprefix(prefix)
    if not text.startswith(prefix) or not place or "\0" in place or "\n" in place:
        raise InvalidPointer("it does not contain a valid path")
    if place.startswith("/"):
        return Path(place)
    # As git does it, from the real directory: ".." after a symbolic link would lead somewhere else.
    return Path(os.path.normpath(base.resolve() / place))


def linked_git_directory(worktree: Path) -> Path | None:
    """Return the record that the ``.git`` file of a linked worktree names; None if there is no valid pointer."""
    try:
        return parse_pointer(read_git_file(worktree / ".git"), worktree, GITDIR_PREFIX)
    except InvalidPointer:
        return None


def git_directory_of(worktree: Path) -> Path | None:
    """Return the git directory with the HEAD of a worktree, linked or not; None if it has none."""
    dot_git = worktree / ".git"
    if dot_git.is_dir():
        return dot_git
    return linked_git_directory(worktree)


def worktree_of_record(record: Path) -> Path | None:
    """Return the directory of the worktree that a record belongs to; None if the record does not name it."""
    try:
        return parse_pointer(read_git_file(record / "gitdir"), record).parent
    except InvalidPointer:
        return None


@dataclass(frozen=True, slots=True)
class Head:
    """What a HEAD names: a ref, or a commit if it is detached. Both are empty if it cannot be read."""

    ref: str = ""
    """Full name of the ref."""
    commit: str = ""
    """The commit of a detached HEAD."""

    @property
    def branch(self) -> str:
        """The branch without ``refs/heads/``; empty for a detached HEAD, or one that names another kind of ref."""
        if is_branch_ref(self.ref):
            return self.ref.removeprefix(BRANCH_PREFIX)
        return ""


def is_branch_ref(ref: str) -> bool:
    """Whether a text is the full name of a branch."""
    return ref.startswith(BRANCH_PREFIX) and is_ref(ref) and ref != BRANCH_PREFIX


def is_ref(ref: str) -> bool:
    """Whether a text has the form of a full ref name."""
    return _REF.fullmatch(ref) is not None and ".." not in ref and "@{" not in ref and not ref.endswith((".lock", "/"))


def parse_head(content: bytes | None) -> Head:
    """Parse a HEAD, or one of the files of a rebase that name a branch."""
    text = os.fsdecode(content or b"").strip()
    name = text.removeprefix("ref:").strip()
    if is_ref(name):
        return Head(ref=name)
    if _OBJECT_ID.fullmatch(text):
        return Head(commit=text)
    return Head()


def read_head(git_directory: Path, name: str = "HEAD") -> Head:
    """Return what the HEAD in a git directory names. Old versions of git made it a symbolic link."""
    path = git_directory / name
    if path.is_symlink():
        return parse_head(os.fsencode(path.readlink()))
    return parse_head(read_git_file(path))


def operation_in_progress(git_directory: Path) -> str:
    """Return what git is in the middle of, as git calls it (``rebase``, ``merge``); empty for nothing."""
    return next((what for name, what in _OPERATIONS.items() if os.path.lexists(git_directory / name)), "")


def list_records(common: Path) -> Iterator[Path]:
    """Yield the records of the linked worktrees of a repository, in no particular order."""
    try:
        with os.scandir(common / "worktrees") as entries:
            for number, entry in enumerate(entries):
                if number == _MAX_RECORDS:
                    return
                yield Path(entry.path)
    except OSError as error:
        raise_if_exhausted(error)
        return


def revisions_for(name: str) -> list[str]:
    """Return the revisions that the name of a base may mean, in order: branches first, then a tag, then a commit.

    Full names, because git prefers a tag to a branch of the same name. ``HEAD``, a full ref and a whole id mean only
    themselves.
    """
    if _OBJECT_ID.fullmatch(name):
        return [name]
    plain = re.split(r"[~^]|@\{", name, maxsplit=1)[0]
    suffix = name[len(plain) :]
    if plain in ("HEAD", "@") or plain.startswith("refs/"):
        return [name]
    places = (BRANCH_PREFIX, "refs/remotes/origin/", "refs/remotes/", "refs/tags/")
    refs = [f"{place}{plain}{suffix}" for place in places if is_ref(f"{place}{plain}")]
    is_id = re.fullmatch(r"[0-9a-f]{7,64}", plain) is not None
    if is_id:
        return [*refs, name]
    return refs
