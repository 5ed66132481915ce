"""What a branch has changed since it left its base, read from saved work: files, and the hunks of some.

Answers have the shapes of agentctl's. Everything is read from git's objects; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from executors_app.machine.git import branch_changes
from executors_app.machine.git.branch_changes import EMPTY_TREES, Comparison, Problem
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.tree_changes import TreeChanges
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
    trees = _trees(kept)
    files, truncated = trees.list_files(compared.tree, kept.files)
    # Against the base, a file may be gone that is renamed against HEAD.
    since_commit = trees.list_names(kept.head, kept.files)
    uncommitted = {path for file in since_commit for path in (file.path, file.old_path)}
    for file in files:
        file.uncommitted = file.path in uncommitted
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
    files = _trees(kept).read_hunks(compared.tree, kept.files, plain, context)
    return {"base": compared.to_json(), "files": files, **kept.kept_field()}


def _trees(kept: SavedWork) -> TreeChanges:
    def read_git(arguments: Sequence[str], limit: int) -> tuple[bytes, bool]:
        output = read_saved_git(kept, *arguments, limit=limit)
        return output, len(output) == limit

    def read_sizes(ids: Sequence[str]) -> dict[str, int]:
        wanted = "".join(f"{each}\n" for each in ids).encode()
        try:
            output = kept.source.git.run("cat-file", branch_changes.SIZE_FORMAT, stdin=wanted, bounds=VIEW)
        except GitFailed as error:
            raise refusal_of(error) from error
        return branch_changes.parse_sizes(output)

    return TreeChanges(read_git, read_sizes, LIST_LIMIT)


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
