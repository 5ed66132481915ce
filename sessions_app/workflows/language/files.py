"""Where the files that a workflow names are found: in one directory, and never outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from sessions_app.workflows.language.limits import MAX_BYTES

_PROJECT_MARKERS = (".robomesh", ".git", "package.json")
SEARCH_DIRECTORIES = (".robomesh/workflows", "workflows", ".robomesh")
"""Where a project keeps its workflows."""
_SUFFIXES = (".yaml", ".yml", ".json")


class FileUnavailable(Exception):
    """There is no such file, or it may not be read; the message is for people."""


class FileProvider(Protocol):
    """Gives the text of a file by its path, which is relative and written with slashes."""

    def read(self, path: str) -> str:
        """Raises NotInLibrary."""


def is_relative_below(path: str) -> bool:
    """Whether a path stays below where it begins: relative, and without a way up."""
    pure = PurePosixPath(path.replace("\\", "/"))
    drive = len(path) > 1 and path[1] == ":"
    return not (pure.is_absolute() or drive or ".." in pure.parts or "\0" in path)


class DirectoryFiles:
    """The files below one directory; links that lead out of it are refused."""

    def __init__(self, root: Path):
        self._root = root.resolve()

    def read(self, path: str) -> str:
        """The text of a file."""
        if not is_relative_below(path):
            raise FileUnavailable(f"“{path}” leads out of the directory of the workflows")
        whole = (self._root / path).resolve()
        if not whole.is_relative_to(self._root):
            raise FileUnavailable(f"“{path}” leads out of the directory of the workflows")
        try:
            if whole.stat().st_size > MAX_BYTES:
                raise FileUnavailable(f"“{path}” has more than {MAX_BYTES >> 10} KiB")
            return whole.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise FileUnavailable(f"“{path}” cannot be read") from error


class InMemoryFiles:
    """Files that are kept beside a workflow: texts by path."""

    def __init__(self, files: Mapping[str, str]):
        self._files = files

    def read(self, path: str) -> str:
        """The text of a file."""
        found = self._files.get(str(PurePosixPath(path)))
        if found is None:
            raise FileUnavailable(f"“{path}” is not among the files of this workflow")
        return found


class CachedFiles:
    """Another library, which remembers what was read in it."""

    def __init__(self, library: FileProvider):
        self._library = library
        self.files: dict[str, str] = {}

    def read(self, path: str) -> str:
        """The text of a file."""
        text = self._library.read(path)
        self.files[str(PurePosixPath(path))] = text
        return text


class NoFiles:
    """No files at all."""

    def read(self, path: str) -> str:
        """There is none."""
        raise FileUnavailable(f"“{path}” is not at hand: this workflow has no files beside it")


def project_root_of(file: Path) -> Path:
    """The directory that paths in a workflow file are relative to: the project around it, else its own."""
    folders = file.resolve().parents
    for mark in _PROJECT_MARKERS:
        for folder in folders:
            if (folder / mark).exists():
                return folder
    return folders[0]


def find_workflow_file(name: Path, project: Path) -> Path:
    """The file of this name: a path, or the bare name of a workflow on a shelf of the project around ``project``."""
    if name.exists() or name.parent != Path() or name.suffix in _SUFFIXES:
        return name
    shelves = [project_root_of(project / "_") / shelf for shelf in SEARCH_DIRECTORIES]
    known = (shelf / f"{name}{suffix}" for shelf in shelves for suffix in _SUFFIXES)
    return next((path for path in known if path.is_file()), name)
