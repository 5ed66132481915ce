"""What a branch has changed since it left its base: git's answers about files and hunks, parsed (pure).

Paths and lines were written by an agent: they are data, decoded for display, and every list has a limit.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

LARGE_FILE: Final = 1 << 20
"""Bytes from which on a file is shown as large, and git does not compare its lines."""
MAX_FILES: Final = 2000
"""Files that are listed; the sums count all that git has named."""
MAX_PATHS: Final = 20
"""Files whose hunks one request returns."""
MAX_CONTEXT: Final = 100_000
"""Lines around a change that can be requested: enough for the whole of any file whose hunks are shown."""
PATCH_LIMIT: Final = 256 << 10
"""Bytes of one file's hunks."""
MAX_LINES: Final = 4000
"""Lines of one file's hunks."""
MAX_LINE: Final = 1000
"""Characters of one line."""
ANSWER_LIMIT: Final = 2 << 20
"""Bytes of hunks in one answer; files after them are left out."""
_SUBMODULE: Final = "160000"
_SYMLINK: Final = "120000"
_HUNK: Final = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)")
SIZE_FORMAT: Final = "--batch-check=%(objectname) %(objectsize)"
_LINE_MARKS: Final = frozenset({b" ", b"+", b"-", b"\\"})
_SETTINGS: Final = ("-c", f"core.bigFileThreshold={LARGE_FILE}")
_OPTIONS: Final = (
    *("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=histogram", "--no-indent-heuristic"),
    *("--find-renames", "-l1000"),
)


class Change(StrEnum):
    """How a file differs from the base."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    TYPE_CHANGED = "type_changed"
    MODE_ONLY = "mode_only"
    LINE_ENDS_ONLY = "line_ends_only"
    CONFLICTED = "conflicted"


class Conflict(StrEnum):
    """What the sides of a merge have done to a file in conflict; *ours* is the branch's own side."""

    BOTH_CHANGED = "both_changed"
    BOTH_ADDED = "both_added"
    BOTH_DELETED = "both_deleted"
    ADDED_BY_US = "added_by_us"
    ADDED_BY_THEM = "added_by_them"
    DELETED_BY_US = "deleted_by_us"
    DELETED_BY_THEM = "deleted_by_them"

    @classmethod
    def of(cls, sides: str) -> Conflict:
        """Return what two letters of ``git status`` mean."""
        return _CONFLICTS.get(sides, cls.BOTH_CHANGED)


_CONFLICTS: Final = {
    "AA": Conflict.BOTH_ADDED,
    "DD": Conflict.BOTH_DELETED,
    "AU": Conflict.ADDED_BY_US,
    "UA": Conflict.ADDED_BY_THEM,
    "DU": Conflict.DELETED_BY_US,
    "UD": Conflict.DELETED_BY_THEM,
}


class Content(StrEnum):
    """What a file contains, and so whether it has hunks."""

    TEXT = "text"
    BINARY = "binary"
    LARGE = "large"
    SUBMODULE = "submodule"
    SYMLINK = "symlink"
    REPOSITORY = "repository"
    """A repository inside the workspace that is no submodule; nothing looks into it."""


EMPTY_TREES: Final = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""The tree without files, which git knows in every repository; by the length of its ids."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """With what the files of a branch are compared."""

    name: str
    """The base, as it was named."""
    tip: str | None
    """The commit of the base; None if there is none."""
    start: str | None
    """The commit at which the branch left the base; None if they have none in common."""
    tree: str
    """``start``, or the tree without files."""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as answers contain it."""
        return {"name": self.name, "commit": self.tip, "start": self.start, "problem": self.problem}


class Problem(StrEnum):
    """Why a branch is not compared with the commit at which it left its base."""

    NO_BASE = "no_base"
    """It is not known from which branch the session started."""
    NOT_FOUND = "not_found"
    """The base is no commit here."""
    UNRELATED = "unrelated"
    """The branch and its base have no commit in common, so every file is new."""


class PartProblem(StrEnum):
    """Why it cannot be shown what a part of a branch has changed."""

    NOT_OF_BRANCH = "not_of_branch"
    """No commit of this branch has this id."""
    NOT_STORED = "not_stored"
    """The repository no longer has the snapshots around the turn."""
    NOT_ENDED = "not_ended"
    """The turn has not ended."""
    NO_SNAPSHOT = "no_snapshot"
    """No snapshot was recorded before the turn, or none after it, because nothing had changed or none was taken."""


MAX_COMMITS: Final = 100
"""Commits of a branch that are listed."""
_MAX_SUBJECT: Final = 200


def name_commits(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``{commits: [{id, subject, author, at}], more_commits}`` of a log with one more than are listed."""
    commits = [
        {
            "id": commit["id"],
            "subject": commit["subject"][:_MAX_SUBJECT],
            "author": commit["author"][:_MAX_SUBJECT],
            "at": commit["at"],
        }
        for commit in found[:MAX_COMMITS]
    ]
    return {"commits": commits, "more_commits": len(found) > MAX_COMMITS}


_CHANGES: Final = {
    "A": Change.ADDED,
    "C": Change.ADDED,
    "M": Change.MODIFIED,
    "D": Change.DELETED,
    "R": Change.RENAMED,
    "T": Change.TYPE_CHANGED,
    "U": Change.CONFLICTED,
}


@dataclass(slots=True)
class ChangedFile:
    """One file that differs from the base."""

    path: bytes
    change: Change
    old_path: bytes = b""
    """Where a renamed file was."""
    content: Content = Content.TEXT
    old_mode: str = ""
    new_mode: str = ""
    old_id: str = ""
    """git's id of the content at the base; empty for none."""
    new_id: str = ""
    """git's id of the content now; empty for none, or if it is not known."""
    additions: int | None = None
    deletions: int | None = None
    size: int | None = None
    """Bytes of the file now, or of a deleted one at the base, where lines are not counted."""
    uncommitted: bool = False
    conflict: Conflict | None = None
    """What is in conflict; None for any other change."""
    is_untracked: bool = False
    """Whether git does not know the file yet."""

    @property
    def is_counted(self) -> bool:
        """Whether git has counted lines."""
        return self.additions is not None

    @property
    def version(self) -> str:
        """A name of exactly this change, by which it is recognised later; empty if the content now is not known."""
        if self.change is Change.CONFLICTED or (not self.new_id and self.change is not Change.DELETED):
            return ""
        fields = (self.old_mode, self.old_id, self.new_mode, self.new_id)
        parts = (self.path, self.old_path, *(field.encode() for field in fields))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:40]

    def to_json(self) -> dict[str, Any]:
        """Return the file as answers contain it."""
        return {
            "path": as_text(self.path),
            "old_path": as_text(self.old_path),
            "change": self.change.value,
            "conflict": self.conflict,
            "content": self.content.value,
            "old_mode": self.old_mode,
            "new_mode": self.new_mode,
            "additions": self.additions,
            "deletions": self.deletions,
            "size": self.size,
            "commits": self._commits_json(),
            "uncommitted": self.uncommitted,
            "version": self.version,
        }

    def _commits_json(self) -> dict[str, str | None] | None:
        """Return to which commits a submodule points: ``{old, new}``, None for none; None for any other file."""
        if self.content is not Content.SUBMODULE:
            return None
        was_one, is_one = self.old_mode == _SUBMODULE, self.new_mode == _SUBMODULE
        return {"old": self.old_id if was_one else None, "new": self.new_id if is_one else None}


def list_arguments(
    command: str, *revisions: str, names: bool = True, counts: bool = True, ignore_line_ends: bool = False
) -> tuple[str, ...]:
    """Return git's arguments for a list of changed files; ``command`` is ``diff`` or ``diff-tree``."""
    options = ["-z", "--no-abbrev", *_OPTIONS]
    if names:
        options.append("--raw")
    if counts:
        options.append("--numstat")
    if ignore_line_ends:
        options.append("--ignore-cr-at-eol")
    if command == "diff-tree":
        options.append("-r")
    return (*_SETTINGS, command, *options, *revisions, "--")


def patch_arguments(command: str, *revisions: str, paths: Sequence[str], context: int) -> tuple[str, ...]:
    """Return git's arguments for the hunks of one file, which may have had another path."""
    options = ["--patch", f"--unified={context}", *_OPTIONS]
    if command == "diff-tree":
        options.append("-r")
    return ("--literal-pathspecs", *_SETTINGS, command, *options, *revisions, "--", *paths)


def parse_changes(fields: Iterable[bytes]) -> list[ChangedFile]:
    """Parse the fields of ``list_arguments``, in git's order, without a file whose fields were cut off."""
    found: dict[bytes, ChangedFile] = {}
    rest = iter(fields)
    for field in rest:
        if field.startswith(b":"):
            file = _parse_raw(field.decode("ascii", "replace"), rest)
            if file.path:
                found[file.path] = file
        else:
            _note_counts(found, field, rest)
    return list(found.values())


def note_counts(files: Iterable[ChangedFile], fields: Iterable[bytes]) -> None:
    """Note the numbers of lines in the fields of ``list_arguments`` without names."""
    found = {file.path: file for file in files}
    rest = iter(fields)
    for field in rest:
        _note_counts(found, field, rest)


def _note_counts(found: Mapping[bytes, ChangedFile], field: bytes, rest: Iterator[bytes]) -> None:
    additions, _, more = field.partition(b"\t")
    deletions, _, path = more.partition(b"\t")
    if not path:  # a renamed file: its old path and its new one follow
        next(rest, b"")
        path = next(rest, b"")
    if (counted := found.get(path)) and additions.isdigit() and deletions.isdigit():
        counted.additions, counted.deletions = int(additions), int(deletions)


def in_order(files: Iterable[ChangedFile]) -> list[ChangedFile]:
    """Return files in the order of the list: those of a directory follow each other."""
    return sorted(files, key=lambda file: file.path.split(b"/"))


def _parse_raw(about: str, rest: Iterable[bytes]) -> ChangedFile:
    old_mode, new_mode, old_id, new_id, status = (about[1:].split(" ") + [""] * 5)[:5]
    names = iter(rest)
    path, old_path = next(names, b""), b""
    if status[:1] in {"R", "C"}:
        old_path, path = path, next(names, b"")
        if status[:1] == "C":
            old_path = b""
    file = ChangedFile(
        path,
        _CHANGES.get(status[:1], Change.MODIFIED),
        old_path,
        old_mode=_known_id(old_mode),
        new_mode=_known_id(new_mode),
        old_id=_known_id(old_id),
        new_id=_known_id(new_id),
    )
    if _SUBMODULE in (old_mode, new_mode):
        file.content = Content.SUBMODULE
    elif new_mode == _SYMLINK:
        file.content = Content.SYMLINK
    return file


def parse_sizes(output: bytes) -> dict[str, int]:
    """Return the size of each object that ``git cat-file`` with ``SIZE_FORMAT`` has found."""
    pairs = [line.split(" ", 1) for line in output.decode("ascii", "replace").splitlines() if " " in line]
    return {name: int(size) for name, size in pairs if size.isdigit()}


def _known_id(name: str) -> str:
    """Return an id or a mode; empty for the zeros that git writes for none, and for a content that is not stored."""
    if name.strip("0"):
        return name
    return ""


def mark_uncounted(file: ChangedFile, size: int | None) -> None:
    """Note the size of a file whose lines git has not counted, and whether that is because it is large."""
    file.size = size
    if file.content is Content.TEXT:
        file.content = Content.LARGE if size is not None and size > LARGE_FILE else Content.BINARY


def mark_small_changes(files: Iterable[ChangedFile], other_than_line_ends: Iterable[ChangedFile]) -> None:
    """Tell changes of the mode alone and of line ends alone from all others.

    ``other_than_line_ends`` is what git lists if it ignores line ends.
    """
    rest = {file.path for file in other_than_line_ends if file.additions or file.deletions}
    for file in files:
        if file.change is not Change.MODIFIED:
            continue
        if file.old_id == file.new_id and file.old_mode != file.new_mode:
            file.change = Change.MODE_ONLY
        elif may_be_line_ends(file) and file.path not in rest:
            file.change = Change.LINE_ENDS_ONLY


def may_be_line_ends(file: ChangedFile) -> bool:
    """Whether only the line ends of a file may have changed: then as many lines have come as have gone."""
    is_modified = file.change is Change.MODIFIED and file.content is Content.TEXT
    return is_modified and bool(file.additions) and file.additions == file.deletions


def summarize(files: Sequence[ChangedFile], *, truncated: bool, more: int = 0) -> dict[str, Any]:
    """Return ``{files, count, additions, deletions, truncated}``: the first files, and sums of all.

    ``more``: the number of further files, which nothing has looked at.
    """
    return {
        "files": [file.to_json() for file in files[:MAX_FILES]],
        "count": len(files) + more,
        "additions": sum(file.additions or 0 for file in files),
        "deletions": sum(file.deletions or 0 for file in files),
        "truncated": truncated or len(files) + more > MAX_FILES,
    }


def hunks_answer(path: str, file: ChangedFile | None) -> dict[str, Any]:
    """Return what is said about a file besides its hunks; None: it does not differ from the base."""
    answer = {"path": path, "old_path": "", "change": "", "version": "", "left_out": False}
    if file is not None:
        answer |= {"old_path": as_text(file.old_path), "change": file.change.value, "version": file.version}
    return {**answer, "hunks": [], "truncated": False, "cut": False}


def parse_hunks(patch: bytes, *, truncated: bool) -> dict[str, Any]:
    """Return ``{hunks, truncated, cut}`` of the patch of one file.

    Each hunk is ``{old_start, old_lines, new_start, new_lines, heading, lines}``; the first character of a line is
    that of the patch. ``cut``: whether a line was too long.
    """
    lines = patch.split(b"\n")
    lines.pop()  # what follows the last line end: nothing, or a line that was cut off
    hunks: list[dict[str, Any]] = []
    is_inside, cut, count = False, False, 0
    for line in lines:
        if found := _HUNK.match(line):
            hunks.append(_new_hunk(found))
            is_inside = True
        elif line[:1] not in _LINE_MARKS:
            is_inside = False  # the header of another patch: a file that became a link is deleted and added
        elif is_inside:
            if count == MAX_LINES:
                truncated = True
                break
            count += 1
            text = as_text(line)
            cut = cut or len(text) > MAX_LINE
            hunks[-1]["lines"].append(_shortened(text))
    return {"hunks": hunks, "truncated": truncated, "cut": cut}


def added_hunks(data: bytes, *, truncated: bool) -> dict[str, Any]:
    """Return what ``parse_hunks`` returns, of a new file with this content."""
    if not data:
        return {"hunks": [], "truncated": truncated, "cut": False}
    is_ended = data.endswith(b"\n")
    lines = data.removesuffix(b"\n").split(b"\n")
    patch = b"".join(b"+" + line + b"\n" for line in lines)
    if not is_ended and not truncated:
        patch += b"\\ No newline at end of file\n"
    return parse_hunks(b"@@ -0,0 +1,%d @@\n" % len(lines) + patch, truncated=truncated)


def _new_hunk(found: re.Match[bytes]) -> dict[str, Any]:
    old_start, old_lines, new_start, new_lines = (
        int(number or default) for number, default in zip(found.groups()[:4], (0, 1, 0, 1), strict=True)
    )
    return {
        "old_start": old_start,
        "old_lines": old_lines,
        "new_start": new_start,
        "new_lines": new_lines,
        "heading": _shortened(as_text(found[5])),
        "lines": [],
    }


def _shortened(text: str) -> str:
    if len(text) > MAX_LINE:
        return f"{text[:MAX_LINE]}…"
    return text


def as_text(data: bytes) -> str:
    """Return what an agent wrote as text for JSON."""
    return data.decode("utf-8", "replace")
