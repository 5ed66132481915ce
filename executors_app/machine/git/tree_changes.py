"""What differs between two trees of a repository, and the hunks of files: what workspaces and saved work share.

git runs as the caller confines it. Answers have the shapes of ``branch_changes``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executors_app.machine.git import branch_changes
from executors_app.machine.git.branch_changes import ANSWER_LIMIT, PATCH_LIMIT, ChangedFile, Content


class ReadGit(Protocol):
    """Runs a git that only reads."""

    def __call__(self, arguments: Sequence[str], limit: int) -> tuple[bytes, bool]:
        """Return the first ``limit`` bytes of git's output, and whether there are more; raises the caller's errors."""


class ReadSizes(Protocol):
    """Looks up the sizes of contents."""

    def __call__(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the size of each content that the repository has, by its id."""


@dataclass(frozen=True, slots=True)
class TreeChanges:
    """The files that differ between two trees."""

    read_git: ReadGit
    read_sizes: ReadSizes
    list_limit: int
    """Bytes of a list of files."""

    def list_files(self, before: str, after: str) -> tuple[list[ChangedFile], bool]:
        """Return the changed files as what they are, and whether there are more than git's answer names."""
        files, truncated = self._list_counted(before, after)
        self._fill_in_sizes(files)
        others: list[ChangedFile] = []
        if any(branch_changes.may_be_line_ends(file) for file in files):
            others = self._parse(branch_changes.list_arguments("diff-tree", before, after, ignore_line_ends=True))
        branch_changes.mark_small_changes(files, others)
        return files, truncated

    def list_names(self, before: str, after: str) -> list[ChangedFile]:
        """Return the changed files without their numbers of lines and sizes."""
        return self._parse(branch_changes.list_arguments("diff-tree", before, after, counts=False))

    def read_hunks(self, before: str, after: str, paths: Mapping[str, str], context: int) -> list[dict[str, Any]]:
        """Return the hunks of files, by the path of the request, with git's path of each."""
        listed = self.list_names(before, after)
        branch_changes.mark_small_changes(listed, [])
        found = {branch_changes.as_text(file.path): file for file in listed}
        reader = HunkReader(self.read_git, "diff-tree", (before, after), context)
        return [reader.read(path, found.get(place)) for path, place in paths.items()]

    def _list_counted(self, before: str, after: str) -> tuple[list[ChangedFile], bool]:
        output, truncated = self.read_git(branch_changes.list_arguments("diff-tree", before, after), self.list_limit)
        files = branch_changes.in_order(branch_changes.parse_changes(output.split(b"\0")[:-1]))
        if truncated:  # before the numbers of lines, which git writes after all files
            arguments = branch_changes.list_arguments("diff-tree", before, after, names=False)
            branch_changes.note_counts(files, self._read_fields(arguments))
        return files, truncated

    def _fill_in_sizes(self, files: Sequence[ChangedFile]) -> None:
        uncounted = [file for file in files if not file.is_counted and file.content is not Content.SUBMODULE]
        shown = uncounted[: branch_changes.MAX_FILES]
        ids = dict.fromkeys(each for file in shown for each in (file.old_id, file.new_id) if each)
        sizes = self.read_sizes(list(ids)) if ids else {}
        for file in uncounted:
            known = [sizes[each] for each in (file.old_id, file.new_id) if each in sizes]
            branch_changes.mark_uncounted(file, max(known, default=None))
            file.size = sizes.get(file.new_id or file.old_id)

    def _parse(self, arguments: Sequence[str]) -> list[ChangedFile]:
        return branch_changes.parse_changes(self._read_fields(arguments))

    def _read_fields(self, arguments: Sequence[str]) -> list[bytes]:
        output, _ = self.read_git(arguments, self.list_limit)
        return output.split(b"\0")[:-1]


@dataclass(slots=True)
class HunkReader:
    """Reads the hunks of files for one answer, as long as it has room."""

    read_git: ReadGit
    command: str
    """``diff``, which compares with the working tree, or ``diff-tree``."""
    revisions: tuple[str, ...]
    context: int
    room: int = ANSWER_LIMIT
    """Bytes that the answer may still get."""

    def read(self, path: str, file: ChangedFile | None) -> dict[str, Any]:
        """Return what the answer says about one file; None: it does not differ."""
        answer = branch_changes.hunks_answer(path, file)
        if file is None:
            return answer
        if self.room <= 0:
            return {**answer, "left_out": True}
        return {**answer, **self.hunks_of(file)}

    def hunks_of(self, file: ChangedFile) -> dict[str, Any]:
        """Return ``{hunks, truncated, cut}`` of a file that differs."""
        return self.compare(self.revisions, [file.path, *filter(None, [file.old_path])])

    def compare(self, revisions: Sequence[str], paths: Sequence[bytes]) -> dict[str, Any]:
        """Return the hunks between revisions, of a file that may have had another path."""
        named = [os.fsdecode(each) for each in paths]
        arguments = branch_changes.patch_arguments(self.command, *revisions, paths=named, context=self.context)
        patch, truncated = self.read_git(arguments, PATCH_LIMIT)
        self.room -= len(patch)
        return branch_changes.parse_hunks(patch, truncated=truncated)
