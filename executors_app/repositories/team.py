"""A team's repository, of which git reads only the objects.

git runs on a *facade*: a git directory of ours with a copy of the refs, whose object directories lead to the
descriptors of the team's. So the repository's own configuration, hooks, attributes, grafts, alternates, replace refs
and worktree records have no effect, and nobody can exchange a directory between our check and git's use of it.
Everything else that is needed from the repository (its layout, its refs, its configuration) is read as plain files
below one opened directory, without following links and without git. git writes nothing there: packs are copied in.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from executors_app.machine import untrusted_files
from executors_app.machine.untrusted_files import Directory
from executors_app.repositories import bare, ref_files
from executors_app.repositories.carried_settings import CarriedSettings, read_carried_settings
from executors_app.repositories.git import Git, GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.layout import (
    PACKS_LIMIT,
    check_repository,
    common_directory,
    open_directory,
    read_worktree_head,
    worktree_directory,
)
from executors_app.repositories.ref_files import FileModes
from executors_app.repositories.transfer import Pack
from executors_app.wire.errors import RepositoryUnusable, no_start_commit
from executors_app.wire.exhaustion import raise_if_exhausted

_CONFIG_LIMIT: Final = 1 << 20
_REVISION: Final = re.compile(
    r"(?P<name>(?!-)[^\x00-\x20\x7f~^:?*\[\\]+)(?P<parents>(?:[~^][0-9]{0,6}|\^\{[a-z]*\}){0,100})"
)
_ABBREVIATED: Final = re.compile(r"[0-9a-f]{4,64}")
_FAN_OUT: Final = tuple(f"{number:02x}" for number in range(256))
"""Directories of loose objects; all of them are linked, because the team's git may create any at any time."""
_NAMED_IN: Final = ("refs/heads/", "refs/remotes/origin/", "refs/remotes/", "refs/tags/")
PUBLISHED_PREFIXES: Final = ("refs/heads/", "refs/tags/", "refs/remotes/")
WORKSPACE_BRANCH_PREFIX: Final = "refs/heads/kandev/"


class TeamRepository:
    """One repository of a team; see ``open``."""

    def __init__(self, path: Path, directory: Directory, config: Mapping[str, str]):
        self.path = path
        self.directory = directory
        """The git directory that all its worktrees share, opened."""
        self.common = directory.path
        self._config = config
        self.object_format = config.get("extensions.objectformat", "sha1").lower()
        self._opened: list[Directory] = []
        self._modes = FileModes.of(config.get("core.sharedrepository", ""))

    @classmethod
    def open(cls, path: Path) -> TeamRepository:
        """Open the repository at ``path`` (or of the worktree there) after checking that it is usable.

        Raises RepositoryUnusable with what to do about it, GitFailed.
        """
        try:
            directory = open_directory(common_directory(path))
        except OSError as error:
            raise RepositoryUnusable(f"The repository {path} cannot be opened: {error.strerror}.") from error
        check_repository(directory)
        opened = cls(path, directory, _read_config(directory))
        if opened.object_format not in bare.OBJECT_FORMATS:
            raise RepositoryUnusable(f"{path} has objects of an unknown format.")
        if opened._config.get("extensions.refstorage", "files") != "files":
            raise RepositoryUnusable(f"{path} does not store its refs as files, which is not supported.")
        return opened

    @property
    def is_bare(self) -> bool:
        """Whether it has no work tree of its own; one whose ``.git`` only claims that has one."""
        return self.path.resolve() == self.common and self._config.get("core.bare") == "true"

    @cached_property
    def git(self) -> Git:
        """Git for the facade, which is removed together with this object; it sees the refs of the last ``refs``."""
        facade = Path(tempfile.mkdtemp(prefix="kandev-git-"))
        weakref.finalize(self, shutil.rmtree, facade, ignore_errors=True)
        bare.write_config(facade, self.object_format)
        (facade / "HEAD").write_text("ref: refs/none\n")
        (facade / "refs").mkdir()
        descriptors = self._link_objects(facade / "objects")
        git = Git(facade, account=str(self.common), descriptors=descriptors)
        self._copy_refs(git, ref_files.read_refs(self.directory))
        return git

    def _link_objects(self, objects: Path) -> tuple[int, ...]:
        """Make an object directory that leads to the team's, by descriptors that git inherits, and return those."""
        objects.mkdir()
        for name, linked in (("objects", _FAN_OUT), ("objects/pack", ("pack",))):
            try:
                opened = self.directory.directory(name)
            except OSError as error:
                raise_if_exhausted(error)
                continue
            self._opened.append(opened)
            place = f"/proc/self/fd/{opened.descriptor}"
            for entry in linked:
                (objects / entry).symlink_to(place if entry == "pack" else f"{place}/{entry}")
        return tuple(opened.descriptor for opened in self._opened)

    @staticmethod
    def _copy_refs(git: Git, refs: Mapping[str, str]) -> None:
        draft = git.directory / "packed-refs.draft"
        draft.write_bytes(ref_files.packed_refs_file(refs))
        draft.rename(git.directory / "packed-refs")

    def head(self) -> str:
        """Return the ref or commit that is checked out at ``path``; empty for none."""
        worktree = worktree_directory(self.path, self.common)
        try:
            if worktree == self.common:
                directory = self.directory
            else:
                directory = Directory(worktree.resolve())
        except OSError as error:
            raise_if_exhausted(error)
            return ""
        named = read_worktree_head(directory)
        return named.ref or named.commit

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that HEAD, a branch, a remote's branch, a tag or an id names, in this order; None for none.

        A branch wins over a tag of the same name, unlike in git's own revisions. Parents can be added: ``main~1``.
        Raises GitFailed.
        """
        found = _REVISION.fullmatch(revision)
        if found is None:
            return None
        named = self._object_named(found["name"])
        if named:
            return bare.resolve_commit(self.git, f"{named}{found['parents']}")
        return None

    def _object_named(self, name: str) -> str:
        """Return the id that a name stands for, perhaps abbreviated; empty for none."""
        refs = self.refs()
        if name in {"HEAD", "@"}:
            head = self.head()
            if head.startswith("refs/"):
                return refs.get(head, "")
            return head
        if name.startswith("refs/"):
            names = [name]
        else:
            names = [f"{place}{name}" for place in _NAMED_IN]
        for full_name in names:
            if commit := refs.get(full_name):
                return commit
        if _ABBREVIATED.fullmatch(name):
            return name
        return ""

    def start_of(self, base: str) -> str:
        """Return the commit that a new branch starts from: ``base`` here or at the remote; empty is HEAD."""
        if commit := self.find_start(base):
            return commit
        raise no_start_commit(self.path, base)

    def find_start(self, base: str) -> str | None:
        """Return the commit that a new branch would start from; None if there is none. Raises GitFailed."""
        return self.commit_of(base or "HEAD")

    def text(self, *arguments: str) -> str:
        """Return git's output for the repository's objects and refs; raises GitFailed."""
        return self.git.text(*arguments)

    def refs(self, *patterns: str) -> dict[str, str]:
        """Return the refs with these names, or below them, and the commits they name, without symbolic refs.

        Without patterns, all refs. Raises RepositoryUnusable.
        """
        values = ref_files.read_refs(self.directory)
        if "git" in self.__dict__:
            self._copy_refs(self.git, values)
        named = {name: commit for name, commit in values.items() if not ref_files.is_symbolic(commit)}
        return {name: commit for name, commit in named.items() if _matches(name, patterns)}

    def update_refs(self, changes: Mapping[str, tuple[str, str]]) -> None:
        """Move refs from an old commit to a new one (empty: none), all or none; see ``ref_files.update_refs``."""
        ref_files.update_refs(self.directory, changes, self._modes)

    def update_ref_groups(self, groups: Mapping[str, Mapping[str, tuple[str, str]]]) -> dict[str, GitFailed]:
        """Move groups of refs, each all or none; return why some were not. See ``ref_files.update_ref_groups``."""
        return ref_files.update_ref_groups(self.directory, groups, self._modes)

    def add_pack(self, pack: Pack, workspace_id: str) -> None:
        """Copy a checked pack of a workspace into the repository, as it is. Raises GitFailed.

        May be repeated; the caller holds the lock of the workspace's archive.
        """
        prefix = f"tmp_kandev_{workspace_id}_"
        try:
            with self.directory.opened("objects/pack", create=self._modes.directory or 0o777) as folder:
                for left in untrusted_files.list_opened(folder, PACKS_LIMIT):
                    if left.name.startswith(prefix):  # of a call that was killed
                        os.unlink(left.name, dir_fd=folder)
                # The index last: git finds a pack by its index.
                for path in (pack.path, pack.index):
                    self._add_file(folder, path, f"{prefix}{secrets.token_hex(8)}")
                os.fsync(folder)
        except OSError as error:
            raise GitFailed(
                f"The work could not be written to {self.common / 'objects'}: {error.strerror}.", cause=Cause.UNKNOWN
            ) from error

    def replaceable_packs(self) -> set[str]:
        """Return the names of packs that may be removed once another one has all their objects."""
        names = {entry.name for entry in self.directory.entries("objects/pack", PACKS_LIMIT) if entry.is_file}
        if "multi-pack-index" in names:
            return set()  # it names packs, and git complains about one that is gone
        packs = {name for name in names if name.endswith(".pack")}
        return {name for name in packs if f"{name.removesuffix('.pack')}.keep" not in names}

    def remove_packs(self, names: Collection[str]) -> None:
        """Remove packs whose objects are in another one. Raises GitFailed."""
        try:
            with self.directory.opened("objects/pack") as folder:
                for name in names:
                    # The index first: git would look for a pack by its index.
                    for suffix in (".idx", ".pack"):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(f"{name.removesuffix('.pack')}{suffix}", dir_fd=folder)
        except OSError as error:
            raise GitFailed(
                f"Merged packs could not be removed from {self.common / 'objects'}: {error.strerror}.",
                cause=Cause.UNKNOWN,
            ) from error

    def _add_file(self, folder: int, path: Path, draft: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with path.open("rb") as source, os.fdopen(os.open(draft, flags, 0o444, dir_fd=folder), "wb") as target:
            try:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                self._modes.apply(target.fileno(), writable=False)
                os.fsync(target.fileno())
                os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(draft, dir_fd=folder)
                raise

    def published_refs(self) -> dict[str, str]:
        """Return the refs that any workspace may read: tags, remote branches, and branches that are not workspaces'."""
        refs = self.refs(*PUBLISHED_PREFIXES)
        return {name: commit for name, commit in refs.items() if _is_published(name)}

    def carried(self) -> CarriedSettings:
        """Return the settings that a workspace gets in addition to commits."""
        return read_carried_settings(self.directory, self._config)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    if not patterns:
        return True
    return any(name == pattern or name.startswith(f"{pattern.rstrip('/')}/") for pattern in patterns)


def _is_published(name: str) -> bool:
    return not name.startswith(WORKSPACE_BRANCH_PREFIX) and _is_text(name)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _read_config(repository: Directory) -> dict[str, str]:
    """Return the last value of each key in the repository's own configuration, without includes.

    Raises RepositoryUnusable.
    """
    place = repository.path / "config"
    text = repository.read("config", _CONFIG_LIMIT)
    if text is None:
        return {}
    if len(text) == _CONFIG_LIMIT:
        raise RepositoryUnusable(f"{place} is too long.")
    try:
        # ``/proc`` is never a repository, so git reads nothing but the given text.
        listed = Git(Path("/proc")).run("config", "--file", "-", "--no-includes", "--null", "--list", stdin=text)
    except GitFailed as error:
        raise RepositoryUnusable(f"{place} cannot be read: {error.message}") from error
    pairs = (entry.partition("\n") for entry in listed.decode("utf-8", "replace").split("\0"))
    return {key: value for key, _, value in pairs if key}
