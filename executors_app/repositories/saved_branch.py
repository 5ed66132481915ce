"""What a branch has changed since it left its base, read from saved work: files, and the hunks of some.

Answers have the shapes of agentctl's. Everything is read from git's objects; nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from executors_app.machine.git import branch_changes
from executors_app.machine.git.branch_changes import (
    ANSWER_LIMIT,
    EMPTY_TREES,
    ChangedFile,
    Comparison,
    Content,
    Problem,
)
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.repositories.git import VIEW, GitFailed
from executors_app.repositories.recovery_refs import (
    LIST_LIMIT,
    SavedWork,
    check_saved_path,
    read_saved_git,
    refusal_of,
)
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import NotKept, RepositoryUnusable

_NOT_RELATED: Final = 1
"""Exit code of ``git merge-base`` for commits that have no ancestor in common."""


def compare_saved(kept: SavedWork, repository: Path, base: str) -> Comparison:
    """Return what to compare saved work with: where its branch left ``base`` (empty: HEAD) of the team's repository.

    Raises NotKept, RuntimeUnavailable.
    """
    try:
        team = TeamRepository.open(repository)
        name, tip = base or team.head().removeprefix(BRANCH_PREFIX), team.find_start(base)
    except GitFailed as error:
        raise refusal_of(error) from error
    except (RepositoryUnusable, OSError):
        name, tip = base, None
    if tip is not None and not _has_commit(kept, tip):
        tip = None
    if tip is None:
        problem = Problem.NOT_FOUND if name else Problem.NO_BASE
        return Comparison(name, None, kept.head, kept.head, problem)
    start = _common_commit(kept, tip)
    if start is None:
        return Comparison(name, tip, None, EMPTY_TREES[len(kept.head)], Problem.UNRELATED)
    return Comparison(name, tip, start, start, "")


def saved_branch_changes(kept: SavedWork, compared: Comparison) -> dict[str, Any]:
    """Return what agentctl's ``list_branch_changes`` returns, of saved work; raises NotKept, RuntimeUnavailable."""
    files, truncated = _list_counted(kept, compared.tree)
    # Against the base, a file may be gone that is renamed against HEAD.
    since_commit = _list_files(kept, kept.head, kept.files, counts=False)
    uncommitted = {path for file in since_commit for path in (file.path, file.old_path)}
    sizes = _sizes(kept, [file for file in files if not file.is_counted][: branch_changes.MAX_FILES])
    for file in files:
        file.uncommitted = file.path in uncommitted
        if not file.is_counted and file.content is not Content.SUBMODULE:
            known = [sizes[each] for each in (file.old_id, file.new_id) if each in sizes]
            branch_changes.mark_uncounted(file, max(known, default=None))
            file.size = sizes.get(file.new_id or file.old_id)
    others: list[ChangedFile] = []
    if any(branch_changes.may_be_line_ends(file) for file in files):
        others = _list_files(kept, compared.tree, kept.files, ignore_line_ends=True)
    branch_changes.mark_small_changes(files, others)
    ahead, behind = _distance(kept, compared.tip)
    return {
        "base": compared.to_json(),
        "branch": kept.branch or None,
        "head": kept.head,
        "ahead": ahead,
        "behind": behind,
        "upstream": None,
        "operation": None,
        **branch_changes.summarize(files, truncated=truncated),
        **kept.kept_field(),
    }


def saved_branch_hunks(kept: SavedWork, compared: Comparison, paths: Sequence[str], context: int) -> dict[str, Any]:
    """Return what agentctl's ``branch_hunks`` returns, of saved work; raises NotKept, RuntimeUnavailable."""
    plain = {path: check_saved_path(path) for path in paths}
    listed = _list_files(kept, compared.tree, kept.files, counts=False)
    branch_changes.mark_small_changes(listed, [])
    found = {branch_changes.as_text(file.path): file for file in listed}
    reader = _HunkReader(kept, compared.tree, context, ANSWER_LIMIT)
    files = [reader.read(path, found.get(place)) for path, place in plain.items()]
    return {"base": compared.to_json(), "files": files, **kept.kept_field()}


@dataclass(slots=True)
class _HunkReader:
    """Reads the hunks of files for one answer."""

    kept: SavedWork
    tree: str
    context: int
    room: int
    """Bytes that the answer may still get."""

    def read(self, path: str, file: ChangedFile | None) -> dict[str, Any]:
        """Return what the answer says about one file; None: it does not differ."""
        answer = branch_changes.hunks_answer(path, file)
        if file is None:
            return answer
        if self.room <= 0:
            return {**answer, "left_out": True}
        both = [os.fsdecode(each) for each in (file.path, file.old_path) if each]
        revisions = self.tree, self.kept.files
        arguments = branch_changes.patch_arguments("diff-tree", *revisions, paths=both, context=self.context)
        patch = read_saved_git(self.kept, *arguments, limit=branch_changes.PATCH_LIMIT)
        self.room -= len(patch)
        return {**answer, **branch_changes.parse_hunks(patch, truncated=len(patch) == branch_changes.PATCH_LIMIT)}


def _list_counted(kept: SavedWork, before: str) -> tuple[list[ChangedFile], bool]:
    """Return the changed files with their numbers of lines, and whether there are more than git's answer names."""
    output = read_saved_git(kept, *branch_changes.list_arguments("diff-tree", before, kept.files), limit=LIST_LIMIT)
    files = branch_changes.in_order(branch_changes.parse_changes(output.split(b"\0")[:-1]))
    truncated = len(output) == LIST_LIMIT
    if truncated:  # before the numbers of lines, which git writes after all files
        arguments = branch_changes.list_arguments("diff-tree", before, kept.files, names=False)
        branch_changes.note_counts(files, read_saved_git(kept, *arguments).split(b"\0")[:-1])
    return files, truncated


def _list_files(
    kept: SavedWork, before: str, after: str, *, counts: bool = True, ignore_line_ends: bool = False
) -> list[ChangedFile]:
    arguments = branch_changes.list_arguments(
        "diff-tree", before, after, counts=counts, ignore_line_ends=ignore_line_ends
    )
    return branch_changes.parse_changes(read_saved_git(kept, *arguments).split(b"\0")[:-1])


def _sizes(kept: SavedWork, files: Sequence[ChangedFile]) -> dict[str, int]:
    """Return the sizes of the contents of files, before and now, by their ids."""
    ids = dict.fromkeys(each for file in files for each in (file.old_id, file.new_id) if each)
    if not ids:
        return {}
    wanted = "".join(f"{each}\n" for each in ids).encode()
    try:
        output = kept.source.git.run("cat-file", branch_changes.SIZE_FORMAT, stdin=wanted, bounds=VIEW)
    except GitFailed as error:
        raise refusal_of(error) from error
    return branch_changes.parse_sizes(output)


def _has_commit(kept: SavedWork, commit: str) -> bool:
    try:
        return read_saved_git(kept, "cat-file", "-t", commit) == b"commit\n"
    except NotKept:
        return False


def _common_commit(kept: SavedWork, tip: str) -> str | None:
    try:
        found = kept.source.git.read("merge-base", tip, kept.head, limit=1000).decode().split()
    except GitFailed as error:
        if error.details.get("exit_code") == _NOT_RELATED:
            return None
        raise refusal_of(error) from error
    return found[0] if found else None


def _distance(kept: SavedWork, tip: str | None) -> tuple[int | None, int | None]:
    if tip is None:
        return None, None
    try:
        counts = read_saved_git(kept, "rev-list", "--left-right", "--count", f"{kept.head}...{tip}", "--")
        ahead, behind = counts.decode().split()
    except (NotKept, ValueError):
        return None, None
    return int(ahead), int(behind)
