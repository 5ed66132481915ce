"""The submodules of a workspace, and the copies of their repositories that the team's repository has.

Nothing is fetched: addresses, names and paths of submodules come from the repository and are hostile. Only what the
team's own repository already has is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_directory
from executors_app.machine.git.endless_files import find_endless_file
from executors_app.machine.git.private_git_directory import common_directory_of
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

_MODULE_NAME: Final = re.compile(r"submodule\.(?P<name>[A-Za-z0-9][A-Za-z0-9_./ -]{0,199})\.path")
_FILL_SECONDS: Final = 30.0
_GIT_FILES: Final = ("HEAD", "config", "index", "info", "objects", "packed-refs", "refs", "shallow")
_BORROWED: Final = ("objects/info/alternates", "objects/info/http-alternates")
_MAX_FILES: Final = 100_000
"""Files and directories in a repository that is examined."""


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
        return is_plain_repository(self.path.parent, self.path.name)


def is_submodule_path(path: bytes) -> bool:
    """Whether a path can be that of a submodule: an index or a snapshot that an agent wrote may name any other."""
    parts = path.split(b"/")
    return not (b"\0" in path or any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts))


def find_repository(root: Path, path: bytes) -> tuple[Path, str]:
    """Return the git directory of a submodule, and its place in the one of the repository around it, at ``root``.

    The place is empty if it is inside the submodule. Neither it nor the submodule may be outside of the workspace,
    whatever links or pointers say, nor share another repository. Raises ValueError, OSError.
    """
    place = root / os.fsdecode(path)
    if not is_submodule_path(path):
        raise ValueError("it is a submodule whose path is not valid")
    if place.resolve() != root.resolve() / os.fsdecode(path):
        raise ValueError("it is a submodule behind a symbolic link")
    own, around = git_directory.git_directory_of(place), git_directory.git_directory_of(root)
    if own is not None and (endless := find_endless_file(place, with_refs=True)):
        raise ValueError(f"it is a submodule with a pipe or device that git would wait for: {endless}")
    if own is None or around is None or not (own / "HEAD").is_file():
        raise ValueError("it is a submodule whose repository cannot be read")
    resolved, modules = own.resolve(), around.resolve() / "modules"
    if common_directory_of(own) != own or _is_shared(own):
        raise ValueError("it is a submodule that shares the repository of another one")
    if resolved == place.resolve() / ".git":
        return own, ""
    if resolved.is_relative_to(modules):
        return own, str(resolved.relative_to(around.resolve()))
    raise ValueError("it is a submodule whose repository is outside of the workspace")


def _is_shared(own: Path) -> bool:
    """Whether git would read or write beside a git directory: through a link, or objects that are borrowed."""
    if any((own / name).is_symlink() for name in _GIT_FILES) or any(os.path.lexists(own / name) for name in _BORROWED):
        return True
    count = 0
    for top in ("objects", "refs"):
        for folder, folders, files in os.walk(own / top):
            count += len(folders) + len(files)
            if count > _MAX_FILES:
                raise ValueError(f"it is a submodule with more than {_MAX_FILES} files in its repository")
            if any(Path(folder, name).is_symlink() for name in (*folders, *files)):
                return True
    return False


def is_plain_repository(parent: Path, name: str) -> bool:
    """Whether there is a repository at this path, and not a link to another one."""
    path = parent / name
    is_inside = path.resolve() == parent.resolve() / name
    return is_inside and (path / "HEAD").is_file() and not (path / "objects").is_symlink()


def is_empty_submodule(root: Path, submodule: Submodule) -> bool:
    """Whether a submodule was not initialised: its directory has no repository."""
    return not os.path.lexists(root / os.fsdecode(submodule.path) / ".git")


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


def fill_from_copy(git: WorkspaceGit, path: str, copy: SubmoduleCopy) -> None:
    """Check out a submodule from the copy in the team's repository, if that has its commit."""
    name = copy.name
    settings = (
        *("-c", "protocol.file.allow=always"),
        *("-c", f"submodule.{name}.url={copy.path}"),
        *("-c", f"submodule.{name}.active=true"),
        *("-c", f"submodule.{name}.update=checkout"),
    )
    arguments = ("--literal-pathspecs", "submodule", "--quiet", "update", "--init", "--checkout", "--", path)
    git.run(*settings, *arguments, all_settings=True, timeout=_FILL_SECONDS, good=(0, 1, 128))
