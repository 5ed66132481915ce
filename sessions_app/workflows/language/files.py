"""Read the files that a workflow names: from one directory and never from outside it, or from memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from sessions_app.workflows.language.limits import MAX_BYTES

_PROJECT_MARKERS = (".robomesh", ".git", "package.json")
SEARCH_DIRECTORIES = (".robomesh/workflows", "workflows", ".robomesh")
"""Where a workflow that is named without a path is searched for in a project."""
_SUFFIXES = (".yaml", ".yml", ".json")


class FileUnavailable(Exception):
    """There is no such file, or it may not be read; users see the message."""


class FileProvider(Protocol):
    """Gives the text of a file by its relative path, which is written with slashes."""

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""


def is_relative_below(path: str) -> bool:
    """Return whether a path is relative and contains no “..”, so that it cannot leave its directory."""
    pure = PurePosixPath(path.replace("\\", "/"))
    drive = len(path) > 1 and path[1] == ":"
    return not (pure.is_absolute() or drive or ".." in pure.parts or "\0" in path)


class DirectoryFiles:
    """The files below one directory. Symbolic links that lead out of it are refused."""

    def __init__(self, root: Path):
        self._root = root.resolve()

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""
        if not is_relative_below(path):
            raise FileUnavailable(f"“{path}” is outside the project of the workflow")
        resolved = (self._root / path).resolve()
        if not resolved.is_relative_to(self._root):
            raise FileUnavailable(f"“{path}” is outside the project of the workflow")
        try:
            if resolved.stat().st_size > MAX_BYTES:
                raise FileUnavailable(f"“{path}” is larger than {MAX_BYTES >> 10} KiB")
            return resolved.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise FileUnavailable(f"“{path}” does not exist, or cannot be read as UTF-8") from error


class InMemoryFiles:
    """Files that are stored with a workflow, as texts by path."""

    def __init__(self, files: Mapping[str, str]):
        self._files = files

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""
        found = self._files.get(str(PurePosixPath(path)))
        if found is None:
            raise FileUnavailable(f"“{path}” is not among the files stored with this workflow")
        return found


class CachedFiles:
    """Wraps a provider and records what is read through it in ``files``."""

    def __init__(self, provider: FileProvider):
        self._provider = provider
        self.files: dict[str, str] = {}

    def read(self, path: str) -> str:
        """Return the text of a file. Raises FileUnavailable."""
        text = self._provider.read(path)
        self.files[str(PurePosixPath(path))] = text
        return text


class NoFiles:
    """The provider of a workflow without files."""

    def read(self, path: str) -> str:
        """Raise FileUnavailable."""
        raise FileUnavailable(f"“{path}” is not available: no files are stored with this workflow")


def project_root_of(file: Path) -> Path:
    """Return the directory that paths in a workflow file are relative to: its project, or else its own directory."""
    folders = file.resolve().parents
    for mark in _PROJECT_MARKERS:
        for folder in folders:
            if (folder / mark).exists():
                return folder
    return folders[0]


def find_workflow_file(name: Path, project: Path) -> Path:
    """Return the path that ``name`` means: a path as it is, or a bare name in the search directories of the project.

    ``project`` is a directory within that project. A name that is not found is returned as it is.
    """
    if name.exists() or name.parent != Path() or name.suffix in _SUFFIXES:
        return name
    root = project_root_of(project / "_")
    for folder in SEARCH_DIRECTORIES:
        for suffix in _SUFFIXES:
            path = root / folder / f"{name}{suffix}"
            if path.is_file():
                return path
    return name
