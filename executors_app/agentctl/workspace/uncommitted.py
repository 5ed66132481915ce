"""Unstage or discard the uncommitted changes of one file, after showing exactly what would be lost.

What is shown has a version, and only that version is changed: a file that has changed meanwhile is left as it is. All
calls block. No hook runs, and everything is done with the agent's rights on its own files.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace.changes import checked_path
from executors_app.agentctl.workspace.discarded_files import finish_discard, kept_place, set_aside, split_discarded
from executors_app.agentctl.workspace.paths import open_path
from executors_app.agentctl.workspace.status_format import STATUS, parse_git_status
from executors_app.agentctl.workspace.submodule_changes import submodule_around
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.protocol import ApiError, Code, validation_error

LOSS_LIMIT: Final = 1 << 20
"""Bytes of lines that are shown; the version is that of the whole file."""
_LIST_LIMIT: Final = 8 << 20
_PLAIN: Final = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-renames"),
)
_GITLINK: Final = "160000"
_TREE: Final = "040000"
_HASHED_FILE: Final = 1 << 30
"""Bytes of a file that is compared; larger ones are left to the terminal."""
_BINARY_HEAD: Final = 8000
_NO_OBJECT: Final = "0"
_CHUNK: Final = 1 << 20
_MAX_FINISHED: Final = 100
_FINISHED: Final = {
    "restored": "Discarding its changes was interrupted, so nothing of it was discarded.",
    "deleted": "Discarding its changes was interrupted after they were replaced, and is finished now.",
    "kept": "Discarding its changes was interrupted, and another file has its place now. What it was is in {path}.",
}


class Action(StrEnum):
    """What can be done with the uncommitted changes of a file."""

    UNSTAGE = "unstage"
    """Let the index have the file of the last commit; the file itself stays."""
    DISCARD = "discard"
    """Let the file be that of the index: of the last commit if nothing is staged; a new file is deleted."""


@dataclass(frozen=True, slots=True)
class _State:
    """A file in the last commit, in the index (each stage), and in the working tree."""

    committed: str
    """Mode and id; empty for none."""
    staged: tuple[str, ...]
    """Mode, id and stage of each entry."""
    content: str
    """Type, mode and SHA-256 of the file; empty for none."""
    source: tuple[str, ...] = ()
    """What a rename that is unstaged brings back: the old path, and what the last commit and the index have there."""

    @property
    def version(self) -> str:
        """A name of exactly this state."""
        parts = "\0".join((self.committed, *self.staged, self.content, *self.source))
        return hashlib.sha256(os.fsencode(parts)).hexdigest()[:40]


def show_loss(git: WorkspaceGit, path: str, action: str) -> dict[str, Any]:
    """Return ``{path, action, version, sentence, lines, truncated}``: what would be lost; raises ApiError."""
    with _explained(path):
        change = _Change(git, path, Action(action))
        return {**change.describe(), "path": path, "action": action, "version": change.state.version}


def carry_out(git: WorkspaceGit, path: str, action: str, version: str) -> dict[str, Any]:
    """Unstage or discard what ``show_loss`` has shown, and return ``{path, action}``.

    Raises ApiError: ``file_changed`` if the file is no longer that version, and then changes nothing.
    """
    with _explained(path):
        change = _Change(git, path, Action(action))
        if change.state.version != version:
            raise _changed(path)
        try:
            change.carry_out()
        except FileNotFoundError as error:
            raise _changed(path) from error
    return {"path": path, "action": action}


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Let errors of the file system be answers: an agent can make files that nobody can read."""
    try:
        yield
    except OSError as error:
        raise validation_error(f"this cannot be changed: {error.strerror}", path=path) from error


def parse_action(name: str) -> str:
    """Return the name of an action; raises ApiError."""
    if name not in set(Action):
        raise validation_error(f"action must be one of {', '.join(Action)}", field="action")
    return name


def finish_discards(git: WorkspaceGit) -> list[tuple[str, str]]:
    """Finish or undo what a killed agentctl has begun to discard; return the paths, each with a sentence about it.

    No file is lost: only exactly what a person has confirmed to discard is deleted. Raises GitError.
    """
    pattern = ":(glob)**/.*.discarded/*"
    # Ignored ones, too: a .gitignore may name whatever begins with a dot.
    listed = git.run("ls-files", "--others", "-z", "--", pattern, limit=_LIST_LIMIT).fields
    told = []
    for path in map(os.fsdecode, listed[:_MAX_FINISHED]):
        try:
            told += _finish_discard(git, path)
        except (OSError, ApiError):  # an agent can make files with such a name, too
            continue
    return told


def _finish_discard(git: WorkspaceGit, path: str) -> list[tuple[str, str]]:
    parts = split_discarded(path)
    if parts is None:
        return []
    folder_path, place, name = parts
    original = checked_path(git.root, f"{folder_path}/{name}" if folder_path else name)
    with opened_folder(git.root, original) as (folder, _):
        outcome = finish_discard(folder, place, name, lambda aside: content_of(aside, name, original))
    if not outcome:
        return []
    kept = "/".join(filter(None, (folder_path, kept_place(place), name)))
    return [(original, _FINISHED[outcome].format(path=os.fsencode(kept).decode("utf-8", "replace")))]


def _changed(path: str) -> ApiError:
    return ApiError(Code.FILE_CHANGED, "the file has changed since it was shown, so nothing was done", path=path)


class _Change:
    """One action on one file, as the file is now."""

    def __init__(self, git: WorkspaceGit, path: str, action: Action):
        self._git, self._path, self._action = git, checked_path(git.root, path), action
        if around := submodule_around(git, path):
            raise ApiError(Code.CONFLICT, f"{path} is inside the submodule {around}: change it there", path=path)
        status = parse_git_status(git.compare(*STATUS, limit=_LIST_LIMIT).fields, errors="surrogateescape")
        self._staged = next((each for each in status["staged"] if each["path"] == path), None)
        self._unstaged = next((each for each in status["unstaged"] if each["path"] == path), None)
        self._is_new = path in status["untracked"]
        self._is_conflicted = path in status["conflicted"]
        self._source = ""
        if action is Action.UNSTAGE and self._staged is not None and self._staged["change"] == "renamed":
            self._source = self._staged["from"]
        self._refuse_impossible()
        self.state = self._read(path)
        if action is Action.UNSTAGE or self._is_conflicted:
            self._refuse_replaced(status)
        if any(entry.startswith(_GITLINK) for entry in (self.state.committed, *self.state.staged)):
            raise ApiError(Code.CONFLICT, f"{path} is a submodule: change it in the terminal", path=path)

    def _refuse_impossible(self) -> None:
        if self._path.endswith("/"):
            raise ApiError(Code.CONFLICT, "this is a repository of its own: change it in the terminal", path=self._path)
        if self._action is Action.UNSTAGE:
            if self._is_conflicted or not (self._staged or self._is_announced):
                raise ApiError(Code.CONFLICT, "nothing of this file is staged, or it is in conflict", path=self._path)
            return
        if not (self._is_conflicted or self._is_new or self._unstaged):
            raise ApiError(Code.CONFLICT, "this file has no changes that are not staged", path=self._path)
        if self._is_announced:
            raise ApiError(Code.CONFLICT, "this new file is marked with git add -N: unstage it first", path=self._path)

    def _refuse_replaced(self, status: dict[str, Any]) -> None:
        """Refuse what would remove other files from the index: it has no file that is a directory of another one."""
        own = {self._path, self._source}
        entries = [*status["staged"], *status["unstaged"]]
        others = {each["path"] for each in entries if each["change"] != "deleted"} | set(status["conflicted"])
        is_taken = any(_contains(path, other) for path in own - {""} for other in others - own)
        if is_taken or self.state.committed.startswith(_TREE):
            message = "a directory has become a file, or a file a directory: change it in the terminal"
            raise ApiError(Code.CONFLICT, message, path=self._path)

    @property
    def _is_announced(self) -> bool:
        """Whether git was told of a new file, but not of its content (``git add --intent-to-add``)."""
        return self._unstaged is not None and self._unstaged["change"] in {"added", "renamed", "copied"}

    def describe(self) -> dict[str, Any]:
        """Return ``{sentence, lines, truncated}``."""
        if self._action is Action.UNSTAGE:
            output = self._diff("--cached")
            lost = "The file itself stays as it is."
            if self._unstaged is not None:
                lost = "The file itself stays as it is, but it differs from what is staged, which is lost."
            return {"sentence": lost, **output}
        if self._is_new:
            return {"sentence": "This new file is deleted.", **self._new_lines()}
        if self._is_conflicted:
            becomes = "The file becomes that of this branch again"
            if not self.state.committed:
                becomes = "The last commit of this branch has no such file, so it is deleted"
            sentence = f"{becomes}, and its conflict ends. All these changes are lost."
            return {"sentence": sentence, **self._diff("HEAD")}
        if self._unstaged is not None and self._unstaged["change"] == "deleted":
            return {"sentence": "The file returns. Nothing is lost.", "lines": "", "truncated": False}
        kept = "What is staged stays." if self._staged else "The file becomes that of the last commit again."
        return {"sentence": f"These changes are lost. {kept}", **self._diff()}

    def carry_out(self) -> None:
        """Do it."""
        if self._action is Action.UNSTAGE:
            self._unstage()
        elif self._is_new:
            with self._set_aside():
                pass
        elif self._is_conflicted:
            self._restore_committed()
        else:
            self._restore_staged()

    def _diff(self, *revision: str) -> dict[str, Any]:
        paths = [self._path, *filter(None, [self._source])]
        arguments = ("--literal-pathspecs", "diff", *revision, *_PLAIN, "--", *paths)
        output = self._git.compare(*arguments, limit=LOSS_LIMIT)
        return {"lines": output.data.decode("utf-8", "replace"), "truncated": output.truncated}

    def _new_lines(self) -> dict[str, Any]:
        with opened_folder(self._git.root, self._path) as (folder, name):
            about = os.lstat(name, dir_fd=folder)
            if stat.S_ISLNK(about.st_mode):
                return {"lines": f"+{os.readlink(name, dir_fd=folder)}", "truncated": False}
            data = _read_file(folder, name, LOSS_LIMIT + 1)
        if b"\0" in data[:_BINARY_HEAD]:
            return {"lines": f"Binary file of {about.st_size} B", "truncated": False}
        text = data[:LOSS_LIMIT].decode("utf-8", "replace").removesuffix("\n")
        lines = "\n".join(f"+{line}" for line in text.split("\n")) if data else ""
        return {"lines": lines, "truncated": len(data) > LOSS_LIMIT}

    # --- the state of a file ---

    def _read(self, path: str) -> _State:
        source: tuple[str, ...] = ()
        if self._source:
            source = (self._source, self._committed(self._source), *self._entries(self._source))
        return _State(self._committed(path), self._entries(path), self._content(path), source)

    def _committed(self, path: str) -> str:
        arguments = ("--literal-pathspecs", "ls-tree", "-z", "HEAD", "--", path)
        fields = self._git.run(*arguments, good=(0, 128)).fields
        if not fields:
            return ""
        mode, _, blob = fields[0].partition(b"\t")[0].decode("ascii", "replace").split(" ", 2)
        return f"{mode} {blob}"

    def _entries(self, path: str) -> tuple[str, ...]:
        fields = self._git.run("--literal-pathspecs", "ls-files", "--stage", "-z", "--", path).fields
        return tuple(field.partition(b"\t")[0].decode("ascii", "replace") for field in fields)

    def _content(self, path: str) -> str:
        try:
            with opened_folder(self._git.root, path) as (folder, name):
                return content_of(folder, name, path)
        except FileNotFoundError:
            return ""

    # --- changes ---

    def _unstage(self) -> None:
        wanted = {self._path: self.state.committed}
        if self._source:
            wanted[self._source] = self.state.source[1]
        self._write_index(wanted)

    def _write_index(self, wanted: dict[str, str]) -> None:
        """Let the index have these entries; all others stay, and so do all files."""
        length = len(self._git.text("hash-object", "-t", "blob", "--stdin"))
        lines = []
        for path, entry in wanted.items():
            name = os.fsencode(path)
            lines.append(b"0 %s\t%s\0" % ((_NO_OBJECT * length).encode(), name))
            if entry:
                lines.append(entry.encode() + b"\t" + name + b"\0")
        self._git.run("update-index", "-z", "--index-info", stdin=b"".join(lines), all_settings=True)

    def _restore_staged(self) -> None:
        if not self.state.content:
            self._check_out()
            return
        with self._set_aside():
            self._check_out()

    def _restore_committed(self) -> None:
        with self._set_aside() if self.state.content else _nothing():
            self._write_index({self._path: self.state.committed})
            if self.state.committed:
                self._check_out()

    def _check_out(self) -> None:
        """Write the file of the index where there is none. Without force, git replaces nothing that is there."""
        names = os.fsencode(self._path) + b"\0"
        self._git.run("checkout-index", "--index", "-z", "--stdin", stdin=names, all_settings=True)

    @contextmanager
    def _set_aside(self) -> Iterator[None]:
        """Rename the file, delete it after the block if it still is what was shown, and otherwise put it back.

        Renamed before it is compared, so that what an agent writes in between is compared, too.
        """
        content = self.state.content
        with opened_folder(self._git.root, self._path) as (folder, name), set_aside(folder, name, content) as aside:
            if content_of(aside, name, self._path) != content:
                raise _changed(self._path)
            yield


def _contains(path: str, other: str) -> bool:
    """Whether one of two paths would be a directory of the other one."""
    return other.startswith(f"{path}/") or path.startswith(f"{other}/")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def opened_folder(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yield the opened directory of a file, and its name; raises FileNotFoundError if a directory is missing.

    No directory on the way may be a link: git calls a file behind one deleted.
    """
    parent, name = os.path.split(path)
    folder = root.resolve() / parent
    if folder.resolve() != folder or not folder.is_dir():
        raise FileNotFoundError(path)
    with open_path(root, parent, os.O_DIRECTORY) as descriptor:
        yield descriptor, name


def content_of(folder: int, name: str, path: str) -> str:
    """Return type, mode and SHA-256 of a file in an opened directory; raises ApiError for anything else, OSError."""
    about = os.lstat(name, dir_fd=folder)
    if stat.S_ISLNK(about.st_mode):
        digest = hashlib.sha256(os.fsencode(os.readlink(name, dir_fd=folder))).hexdigest()
        return f"link {digest}"
    if not stat.S_ISREG(about.st_mode):
        raise ApiError(Code.CONFLICT, "there is no plain file in this place: change it in the terminal", path=path)
    return f"{stat.S_IMODE(about.st_mode):o} {_hash_file(folder, name, path)}"


@contextmanager
def _opened_file(folder: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _hash_file(folder: int, name: str, path: str) -> str:
    found, room = hashlib.sha256(), _HASHED_FILE
    with _opened_file(folder, name) as descriptor:
        if os.fstat(descriptor).st_size > room:
            room = 0
        while data := os.read(descriptor, _CHUNK):
            room -= len(data)
            if room < 0:
                message = f"the file is larger than {_HASHED_FILE >> 30} GiB: change it in the terminal"
                raise ApiError(Code.CONFLICT, message, path=path)
            found.update(data)
    return found.hexdigest()


def _read_file(folder: int, name: str, limit: int) -> bytes:
    parts: list[bytes] = []
    with _opened_file(folder, name) as descriptor:
        while limit > 0 and (data := os.read(descriptor, min(limit, _CHUNK))):
            parts.append(data)
            limit -= len(data)
    return b"".join(parts)
