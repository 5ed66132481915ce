"""What a branch has changed since it left its base, read from saved work: files, and the hunks of some.

Answers have the shapes of agentctl's. Everything is read from git's objects; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from executors_app.machine.git import branch_changes, recovery_snapshots
from executors_app.machine.git.branch_changes import EMPTY_TREES, ChangedFile, Comparison, PartProblem, Problem
from executors_app.machine.git.commit_log import git_log_arguments, parse_git_log
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.tree_changes import TreeChanges
from executors_app.repositories import bare
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
from executors_app.wire.exhaustion import raise_if_exhausted

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
    except (RepositoryUnusable, OSError) as error:
        raise_if_exhausted(error)
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
        **_list_commits(kept, compared),
        **branch_changes.summarize(files, truncated=truncated),
        **kept.kept_field(),
    }


def saved_part_changes(kept: SavedWork, compared: Comparison, part: Mapping[str, str], owner_id: str) -> dict[str, Any]:
    """Return what agentctl answers about a part of the branch (``client.part_changes``), of saved work.

    ``compared`` only says which commits the branch has; ``owner_id`` is the session of the snapshots. Raises NotKept,
    RuntimeUnavailable.
    """
    pair, problem = _pair_of(kept, part, owner_id)
    files: list[ChangedFile] = []
    truncated = False
    if pair:
        files, truncated = _trees(kept).list_files(*pair)
    for file in files:
        file.uncommitted = not part
    return {
        "base": None,
        "branch": kept.branch or None,
        "head": kept.head,
        "ahead": None,
        "behind": None,
        "upstream": None,
        "operation": None,
        "part_problem": problem,
        **_list_commits(kept, compared),
        **branch_changes.summarize(files, truncated=truncated),
        **kept.kept_field(),
    }


def saved_part_hunks(
    kept: SavedWork, part: Mapping[str, str], owner_id: str, paths: Sequence[str], context: int
) -> dict[str, Any]:
    """Return the hunks of files that a part of the branch has changed; raises NotKept, RuntimeUnavailable."""
    plain = {path: check_saved_path(path) for path in paths}
    pair, _ = _pair_of(kept, part, owner_id)
    files = [branch_changes.hunks_answer(path, None) for path in paths]
    if pair:
        files = _trees(kept).read_hunks(*pair, plain, context)
    return {"base": None, "files": files, **kept.kept_field()}


def _pair_of(kept: SavedWork, part: Mapping[str, str], owner_id: str) -> tuple[tuple[str, str] | None, str]:
    """Return the trees that a part lies between, or None and the reason."""
    if commit := part.get("commit"):
        if not _is_of_branch(kept, commit):
            return None, PartProblem.NOT_OF_BRANCH
        parents = read_saved_git(kept, "rev-parse", f"{commit}^@").decode().split()
        return (parents[0] if parents else EMPTY_TREES[len(commit)], commit), ""
    if not part:
        return (kept.head, kept.files), ""
    before, after = part["before"], part["after"]
    if all(_is_snapshot(kept, each, owner_id) for each in (before, after)):
        return (before, after), ""
    return None, PartProblem.NOT_STORED


def _is_of_branch(kept: SavedWork, commit: str) -> bool:
    """Whether a commit is one of the branch's: a repository may have commits of other sessions."""
    if not _has_commit(kept, commit):
        return False
    try:
        return kept.source.git.read("merge-base", commit, kept.head, limit=1000).decode().strip() == commit
    except GitFailed as error:
        if error.details.get("exit_code") == _NOT_RELATED:
            return False
        raise refusal_of(error) from error


def _is_snapshot(kept: SavedWork, commit: str, owner_id: str) -> bool:
    """Whether a commit is a snapshot of this session, and still stored."""
    if not bare.OBJECT_ID.fullmatch(commit) or not _has_commit(kept, commit):
        return False
    try:
        found = recovery_snapshots.find_recovery(partial(kept.source.git.text, bounds=VIEW), commit)
    except GitFailed as error:
        raise refusal_of(error) from error
    return found is not None and found.session_id == owner_id


def _list_commits(kept: SavedWork, compared: Comparison) -> dict[str, Any]:
    """Return the branch's newest commits since its base; null if it is not known which those are."""
    if compared.tip is None:
        return {"commits": None, "more_commits": False}
    start = f"{compared.start}..{kept.head}" if compared.start else kept.head
    output = read_saved_git(kept, *git_log_arguments(branch_changes.MAX_COMMITS + 1, 0, start))
    return branch_changes.name_commits(parse_git_log(output.split(b"\0")[:-1]))


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
