"""Where the files that a workflow names are found: in one directory, and never outside of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Protocol

from sessions_app.workflows.limits import MAX_BYTES

_ROOT_MARKS = (".robomesh", ".git", "package.json")


class NotInLibrary(Exception):
    """There is no such file, or it may not be read; the message is for people."""


class Library(Protocol):
    """Gives the text of a file by its path, which is relative and written with slashes."""

    def read(self, path: str) -> str:
        """Raises NotInLibrary."""


def is_inside(path: str) -> bool:
    """Whether a path stays below where it begins: relative, and without a way up."""
    pure = PurePosixPath(path.replace("\\", "/"))
    drive = len(path) > 1 and path[1] == ":"
    return not (pure.is_absolute() or drive or ".." in pure.parts or "\0" in path)


class Directory:
    """The files below one directory; links that lead out of it are refused."""

    def __init__(self, root: Path):
        self._root = root.resolve()

    def read(self, path: str) -> str:
        """The text of a file."""
        if not is_inside(path):
            raise NotInLibrary(f"“{path}” leads out of the directory of the workflows")
        whole = (self._root / path).resolve()
        if not whole.is_relative_to(self._root):
            raise NotInLibrary(f"“{path}” leads out of the directory of the workflows")
        try:
            if whole.stat().st_size > MAX_BYTES:
                raise NotInLibrary(f"“{path}” has more than {MAX_BYTES >> 10} KiB")
            return whole.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise NotInLibrary(f"“{path}” cannot be read") from error


class Nothing:
    """No files at all."""

    def read(self, path: str) -> str:
        """There is none."""
        raise NotInLibrary(f"“{path}” is not at hand: this workflow has no files beside it")


def root_of(file: Path) -> Path:
    """The directory that paths in a workflow file are relative to: the project around it, else its own."""
    folders = file.resolve().parents
    for mark in _ROOT_MARKS:
        for folder in folders:
            if (folder / mark).exists():
                return folder
    return folders[0]
