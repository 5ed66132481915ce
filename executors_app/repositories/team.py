"""A team's repository, of which git reads only the objects and refs.

git runs on a *facade*: a git directory of ours whose ``refs`` and ``packed-refs`` lead to the team's, with the
team's objects named by ``GIT_OBJECT_DIRECTORY``. So the repository's own configuration, hooks, attributes, grafts,
replace refs and worktree records have no effect. Everything else that is needed from the repository (its layout, its
HEADs, its configuration) is read as plain files, before and without git.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from executors_app import untrusted_files
from executors_app.errors import RepositoryUnusable
from executors_app.repositories import bare
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.git import Git, GitFailed

POINTER_LIMIT: Final = 8192
_REFS_LIMIT: Final = 200_000
"""Maximum number of entries below ``refs``; packed refs do not count."""
_PACKS_LIMIT: Final = 50_000


def common_directory(path: Path) -> Path:
    """Return the git directory that a repository's worktrees share; raises RepositoryUnusable.

    ``path`` is a repository, a bare one, or a worktree.
    """
    if not path.is_dir():
        raise RepositoryUnusable(f"The repository {path} does not exist.")
    pointer = path / ".git"
    if pointer.is_symlink() or pointer.is_dir():
        common = pointer.resolve()
    elif pointer.exists():
        common = _pointed(path, pointer)
    else:
        common = path.resolve()
    for name in ("objects", "refs", "HEAD"):
        if not os.path.lexists(common / name):
            raise RepositoryUnusable(f"{path} is not a usable git repository: {common} has no {name}.")
    if os.path.lexists(common / "commondir"):
        raise RepositoryUnusable(
            f"{path} is not a usable git repository: {common / 'commondir'} leads to another one. Remove that file."
        )
    return common


def worktree_directory(path: Path, common: Path) -> Path:
    """Return the git directory of the worktree at ``path``, which has its HEAD; ``common`` for the main one."""
    pointer = path / ".git"
    if pointer.is_symlink() or not pointer.is_file():
        return common
    return _target(path, pointer, "gitdir:")


def check_repository(common: Path) -> None:
    """Raise RepositoryUnusable, with what to do, for a repository that is unsafe or incomplete."""
    for name in ("objects", "objects/info", "objects/pack", "refs", "packed-refs"):
        if (common / name).is_symlink():
            raise RepositoryUnusable(
                f"{common / name} is a symbolic link. Replace it with what it points to, then try again."
            )
    if (common / "reftable").exists():
        raise RepositoryUnusable(
            f"{common} stores its refs as a reftable, which is not supported. Clone it with --ref-format=files."
        )
    if (common / "shallow").exists():
        raise RepositoryUnusable(f"{common} is a shallow clone. Run git fetch --unshallow in it, then try again.")
    borrowed = untrusted_files.read_regular_file(common / "objects" / "info" / "alternates", POINTER_LIMIT) or b""
    if any(line.strip() and not line.startswith(b"#") for line in borrowed.splitlines()):
        # Anyone who could ever write the objects may have chosen that path, and agents could then read everything
        # in it.
        raise RepositoryUnusable(
            f"{common} borrows objects from another repository. Run git repack -a -d in it and remove "
            f"{common / 'objects' / 'info' / 'alternates'}, then try again."
        )
    _check_objects(common / "objects")
    _check_refs(common / "refs")


def _check_objects(objects: Path) -> None:
    for folder, limit in ((objects, 1000), (objects / "pack", _PACKS_LIMIT)):
        for entry in untrusted_files.list_entries(folder, limit):
            if entry.is_symlink():
                raise RepositoryUnusable(f"{entry.path} is a symbolic link. Replace it with what it points to.")
            if entry.name.endswith(".promisor"):
                raise RepositoryUnusable(
                    f"{objects.parent} is a partial clone, which lacks objects. Clone the repository without --filter."
                )


def _check_refs(refs: Path) -> None:
    """Reject symbolic links below ``refs``: git would read and write wherever they lead."""
    folders, count = [refs], 0
    while folders:
        for entry in untrusted_files.list_entries(folders.pop(), _REFS_LIMIT):
            count += 1
            if count >= _REFS_LIMIT:
                raise RepositoryUnusable(f"{refs} contains too many files. Run git pack-refs --all in the repository.")
            if entry.is_symlink():
                raise RepositoryUnusable(f"{entry.path} is a symbolic link below refs. Remove it, then try again.")
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))


def _pointed(path: Path, pointer: Path) -> Path:
    """Resolve a ``.git`` file to the directory that all worktrees share."""
    folder = _target(path, pointer, "gitdir:")
    shared = folder / "commondir"
    return _target(folder, shared, "").resolve() if os.path.lexists(shared) else folder.resolve()


def _target(base: Path, pointer: Path, prefix: str) -> Path:
    said = os.fsdecode(untrusted_files.read_regular_file(pointer, POINTER_LIMIT) or b"").removesuffix("\n")
    place = said.removeprefix(prefix).removeprefix(" ")
    if not said.startswith(prefix) or not place or "\0" in place or len(said) >= POINTER_LIMIT - 1:
        raise RepositoryUnusable(f"{base} is not a usable git repository: {pointer} does not contain a valid path.")
    return base / place


_BRANCH: Final = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_WORKTREES: Final = 10_000
_IN_USE: Final = ("HEAD", "rebase-merge/head-name", "rebase-apply/head-name")
"""During a rebase HEAD names no branch; git keeps the branch's name in these files."""


def checked_out_branches(common: Path) -> set[str]:
    """Return the refs of all branches that are checked out in any worktree of the repository."""
    places = [common, *(Path(entry.path) for entry in untrusted_files.list_entries(common / "worktrees", _WORKTREES))]
    named = {_named_ref(place / name) for place in places for name in _IN_USE}
    return {name for name in named if name.startswith("refs/")}


def _named_ref(path: Path) -> str:
    if path.is_symlink():  # old versions of git made HEAD a symbolic link
        said = os.fsdecode(path.readlink())
    else:
        said = (
            os.fsdecode(untrusted_files.read_regular_file(path, POINTER_LIMIT) or b"")
            .strip()
            .removeprefix("ref:")
            .strip()
        )
    return said if _BRANCH.fullmatch(said) or OBJECT_ID.fullmatch(said) else ""


_EXCLUDE_LIMIT: Final = 64 << 10
_HOOK: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_HOOKS: Final = 64
_HOOK_LIMIT: Final = 256 << 10
_HOOKS_TOTAL: Final = 1 << 20
_REMOTE: Final = re.compile(r"remote\.([A-Za-z0-9][A-Za-z0-9_-]{0,99})\.url")
_REMOTES: Final = 100
_URL_LIMIT: Final = 2048
_SCP: Final = re.compile(r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9][A-Za-z0-9._-]*):(?!/?/)[^\s\\]+")
_USER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class CarriedSettings:
    """Settings of a team's repository that are copied to a workspace's repository."""

    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email``, as far as they are configured."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    """URLs by the remote's name."""
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The hooks, without git's samples; they run only in a sandbox."""


def read_carried_settings(common: Path, config: Mapping[str, str]) -> CarriedSettings:
    """Return the settings; ``config`` is the repository's own configuration, the last value of each key."""
    exclude = untrusted_files.read_regular_file(common / "info" / "exclude", _EXCLUDE_LIMIT) or b""
    return CarriedSettings(
        identity={name: text for name in ("name", "email") if (text := _plain(config.get(f"user.{name}", "")))},
        remotes=dict(list(_remotes(config))[:_REMOTES]),
        exclude=exclude.decode("utf-8", "replace"),
        hooks=dict(_hooks(common / "hooks")),
    )


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:200]


def _remotes(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = _REMOTE.fullmatch(key)
        if name and (url := strip_credentials(value)):
            yield name[1], url


def strip_credentials(url: str) -> str:
    """Return an http, ssh or git URL without password, token and query; empty for any other URL.

    The user's name of an ssh URL stays, because it is part of the address.
    """
    if not url.isprintable() or len(url) > _URL_LIMIT or any(letter.isspace() for letter in url):
        return ""
    if short := _SCP.fullmatch(url):
        return "" if short[2] == "ext" else url  # git would run the program that an ``ext`` URL names
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https", "ssh", "git"} or not host or host.startswith("-"):
        return ""
    place = f"[{host}]" if ":" in host else host
    user = f"{parts.username}@" if parts.scheme == "ssh" and _USER.fullmatch(parts.username or "") else ""
    return urlunsplit((parts.scheme, user + place + (f":{port}" if port else ""), parts.path, "", ""))


def _hooks(folder: Path) -> Iterator[tuple[str, bytes]]:
    left = _HOOKS_TOTAL
    for entry in sorted(untrusted_files.list_entries(folder, _HOOKS * 4), key=lambda entry: entry.name)[:_HOOKS]:
        if not _HOOK.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
            continue
        if not entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR:
            continue
        text = untrusted_files.read_regular_file(Path(entry.path), _HOOK_LIMIT + 1, follow=False)
        if text is not None and len(text) <= min(_HOOK_LIMIT, left):
            left -= len(text)
            yield entry.name, text


_CONFIG_LIMIT: Final = 1 << 20
_SHARED: Final = re.compile(r"(?:group|all|world|everybody|true|umask|false|0[0-7]{3}|[012])")
PUBLISHED_PREFIXES: Final = ("refs/heads/", "refs/tags/", "refs/remotes/")
WORKSPACE_BRANCH_PREFIX: Final = "refs/heads/kandev/"


class TeamRepository:
    """One repository of a team; see ``open``."""

    def __init__(self, path: Path, common: Path, config: Mapping[str, str]):
        self.path = path
        self.common = common
        """The git directory that all its worktrees share."""
        self._config = config
        self.object_format = config.get("extensions.objectformat", "sha1").lower()

    @classmethod
    def open(cls, path: Path) -> TeamRepository:
        """Open the repository at ``path`` (or of the worktree there) after checking that it is usable.

        Raises RepositoryUnusable with what to do about it, GitFailed.
        """
        common = common_directory(path)
        check_repository(common)
        opened = cls(path, common, _read_config(common))
        if opened.object_format not in bare.OBJECT_FORMATS:
            raise RepositoryUnusable(f"{path} has objects of an unknown format.")
        if opened._config.get("extensions.refstorage", "files") != "files":
            raise RepositoryUnusable(f"{path} does not store its refs as files, which is not supported.")
        return opened

    @cached_property
    def git(self) -> Git:
        """Git for the facade, which is removed together with this object."""
        facade = Path(tempfile.mkdtemp(prefix="kandev-git-"))
        weakref.finalize(self, shutil.rmtree, facade, ignore_errors=True)
        shared = self._config.get("core.sharedrepository", "")
        bare.write_config(facade, self.object_format, shared if _SHARED.fullmatch(shared) else "")
        head = self.head()
        (facade / "HEAD").write_bytes(
            (f"ref: {head}" if head.startswith("refs/") else head).encode() or b"ref: refs/none"
        )
        for name in ("refs", "packed-refs"):
            (facade / name).symlink_to(self.common / name)
        return Git(facade, self.common / "objects")

    def head(self) -> str:
        """Return the ref or commit that is checked out at ``path``; empty for none."""
        return _named_ref(worktree_directory(self.path, self.common) / "HEAD")

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a branch, tag or id names; None if it names none. Raises GitFailed."""
        return bare.resolve_commit(self.git, revision)

    def start_of(self, base: str) -> str:
        """Return the commit that a new branch starts from: ``base`` here or at the remote; empty is HEAD."""
        for revision in (base, f"origin/{base}") if base else (self.head(),):
            if commit := self.commit_of(revision):
                return commit
        raise RepositoryUnusable(f"The repository {self.path} has no commit at {base or 'HEAD'!r} to start from.")

    def refs(self, *patterns: str) -> dict[str, str]:
        """Return matching refs and the commits they name, without symbolic refs. Raises GitFailed."""
        return bare.list_refs(self.git, *patterns)

    def published_refs(self) -> dict[str, str]:
        """Return the refs that any workspace may read: tags, remote branches, and branches that are not workspaces'."""
        return {
            name: at
            for name, at in self.refs(*PUBLISHED_PREFIXES).items()
            if not name.startswith(WORKSPACE_BRANCH_PREFIX) and _is_text(name)
        }

    def carried(self) -> CarriedSettings:
        """Return the settings that a workspace gets in addition to commits."""
        return read_carried_settings(self.common, self._config)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _read_config(common: Path) -> dict[str, str]:
    """Return the last value of each key in the repository's own configuration, without includes.

    Raises RepositoryUnusable.
    """
    text = untrusted_files.read_regular_file(common / "config", _CONFIG_LIMIT)
    if text is None:
        return {}
    if len(text) == _CONFIG_LIMIT:
        raise RepositoryUnusable(f"{common / 'config'} is too long.")
    try:
        # ``/proc`` is never a repository, so git reads nothing but the given text.
        said = Git(Path("/proc")).run("config", "--file", "-", "--no-includes", "--null", "--list", stdin=text)
    except GitFailed as error:
        raise RepositoryUnusable(f"{common / 'config'} cannot be read: {error.message}") from error
    pairs = (entry.partition("\n") for entry in said.decode("utf-8", "replace").split("\0"))
    return {key: value for key, _, value in pairs if key}
