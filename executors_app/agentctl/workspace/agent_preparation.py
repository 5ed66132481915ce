"""Checks of a workspace right before an agent starts in it: what would break its git, and what it should know.

Nothing is fetched: the addresses of submodules come from the repository and are hostile. Only what the team's own
repository already has is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.agentctl.workspace.index_listing import parse_index_listing
from executors_app.agentctl.workspace.uncommitted import finish_discards
from executors_app.machine.git import git_directory
from executors_app.machine.git.commit_log import count_commits
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.submodules import (
    SubmoduleCopy,
    fill_from_copy,
    is_empty_submodule,
    is_plain_repository,
    submodule_copies,
)
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit

_LISTING_LIMIT: Final = 64 << 20
_MAX_SUBMODULES: Final = 50
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people and the agent should know about the workspace."""

    code: str
    text: str


def prepare_workspace(git: WorkspaceGit, base: str, *, rebuilt: bool = False) -> list[Notice]:
    """Repair what would break the agent's git, and return what should be known; never raises.

    ``base`` is the branch that the session has just started from; empty if it started earlier. ``rebuilt``: the files
    of the workspace were lost and have just been restored.
    """
    notices: list[Notice] = []
    checks = (
        *(_repair_record, _repair_bare, report_discards, partial(_fill_submodules, rebuilt=rebuilt)),
        *(partial(_compare_base, base=base), _find_collisions),
    )
    for check in checks:
        try:
            notices += check(git)
        except (GitError, OSError, ValueError):
            continue  # the workspace works as far as it can; snapshots and panels report their own errors
    return notices


def report_discards(git: WorkspaceGit) -> list[Notice]:
    """Finish or undo what a killed agentctl has begun to discard, and say so; raises GitError."""
    return [Notice("discard_interrupted", f"{path}: {sentence}") for path, sentence in finish_discards(git)]


def _repair_record(git: WorkspaceGit) -> list[Notice]:
    """Correct git's record of a worktree that was moved by hand, before git prunes it with HEAD and index."""
    own = git_directory.linked_git_directory(git.root)
    if own is not None and git_directory.worktree_of_record(own) != git.root:
        place = git_directory.worktree_of_record(own)
        if place is None or not os.path.lexists(place):
            git.run("worktree", "repair", all_settings=True)
    return []


def _repair_bare(git: WorkspaceGit) -> list[Notice]:
    """Override ``core.bare`` and ``core.worktree`` for this worktree.

    With ``extensions.worktreeConfig`` git applies those of the shared configuration to every worktree, in which no
    command then works.
    """
    settings = dict(_settings(git, r"^(core\.(bare|worktree)|extensions\.worktreeconfig)$"))
    own = git_directory.linked_git_directory(git.root)
    if own is None or not _is_true(settings.get("extensions.worktreeconfig", "")):
        return []
    if _is_true(settings.get("core.bare", "")):
        git.run("config", "--worktree", "core.bare", "false", all_settings=True)
    if settings.get("core.worktree", str(git.root)) != str(git.root):
        git.run("config", "--worktree", "core.worktree", str(git.root), all_settings=True)
    return []


def _settings(git: WorkspaceGit, pattern: str) -> Iterator[tuple[str, str]]:
    fields = git.run("config", "--get-regexp", "-z", pattern, all_settings=True, good=(0, 1)).fields
    for entry in fields:
        key, _, value = entry.decode("utf-8", "surrogateescape").partition("\n")
        yield key, value


def _is_true(value: str) -> bool:
    return value.lower() in {"true", "yes", "on", "1"}


def _compare_base(git: WorkspaceGit, base: str) -> list[Notice]:
    """Compare the base with its upstream as this repository knows it, without fetching."""
    base = base.removeprefix(BRANCH_PREFIX)
    ref = f"{BRANCH_PREFIX}{base}"
    if not git_directory.is_branch_ref(ref):
        return []
    listed = git.text("for-each-ref", "--format=%(upstream)", ref, all_settings=True)
    upstream = listed or f"refs/remotes/origin/{base}"
    counted = git.run("rev-list", "--count", f"{ref}..{upstream}", "--", good=(0, 128))
    if counted.exit_code or counted.text == "0":
        return []
    commits = count_commits(int(counted.text))
    name = upstream.removeprefix("refs/remotes/").removeprefix(BRANCH_PREFIX)
    text = (
        f"The base branch {base} is {commits} behind {name}, as of the last fetch of this repository. The session "
        "started without them."
    )
    return [Notice("base_behind", text)]


def _find_collisions(git: WorkspaceGit) -> list[Notice]:
    """Name tracked files of which this file system can hold only one, so that the others seem to have changed."""
    if not ignores_case(git.root):
        return []
    listed = git.run("ls-files", "-z", limit=_LISTING_LIMIT).fields
    groups = find_case_collisions(listed)
    if not groups:
        return []
    named = "; ".join(" and ".join(os.fsdecode(path) for path in group) for group in groups[:_MAX_NAMED])
    if len(groups) > _MAX_NAMED:
        named += f"; and {len(groups) - _MAX_NAMED} more"
    text = (
        f"These files differ only in upper and lower case, and this file system holds only one of them: {named}. "
        "The others appear as changed. Rename all but one of them in the repository."
    )
    return [Notice("case_collisions", text.encode("utf-8", "replace").decode())]


def ignores_case(root: Path) -> bool:
    """Whether the file system of a workspace does not distinguish upper and lower case."""
    # A file of that very name would be another one.
    return os.path.lexists(root / ".GIT") and not any(entry.name == ".GIT" for entry in root.iterdir())


def find_case_collisions(paths: Iterable[bytes]) -> list[list[bytes]]:
    """Return the groups of paths, or of their directories, that differ only in case."""
    groups: dict[str, set[bytes]] = {}
    for path in paths:
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            prefix = b"/".join(parts[:depth])
            groups.setdefault(prefix.decode("utf-8", "replace").casefold(), set()).add(prefix)
    return [sorted(group) for _, group in sorted(groups.items()) if len(group) > 1]


def _fill_submodules(git: WorkspaceGit, *, rebuilt: bool) -> list[Notice]:
    """Initialise submodules from the copies that the team's repository has, and name those that stay empty."""
    listing = parse_index_listing(git.run("ls-files", "-z", "-v", "--stage", limit=_LISTING_LIMIT).data)
    empty = [each for each in listing.submodules[:_MAX_SUBMODULES] if is_empty_submodule(git.root, each)]
    if not empty:
        return []
    copies = submodule_copies(git)
    empty = [each for each in empty if (git.root / os.fsdecode(each.path)).is_dir()]  # not if the agent has removed it
    if not rebuilt:
        empty = [each for each in empty if not _was_emptied(git, copies.get(os.fsdecode(each.path)))]
    for submodule in empty:
        path = os.fsdecode(submodule.path)
        if copy := copies.get(path):
            fill_from_copy(git, path, copy)
    left = [os.fsdecode(each.path) for each in empty if is_empty_submodule(git.root, each)]
    if left:
        return [Notice("submodules_empty", _empty_sentence(left))]
    return []


def _was_emptied(git: WorkspaceGit, copy: SubmoduleCopy | None) -> bool:
    """Whether the agent has emptied a submodule: once it is filled, the workspace has a repository of its own for it.

    That repository outlives the files. Whether the removal is staged or not, a restart must not undo it.
    """
    own = git_directory.git_directory_of(git.root)
    return copy is not None and own is not None and is_plain_repository(own.resolve() / "modules", copy.name)


def _empty_sentence(paths: Sequence[str]) -> str:
    shown = ", ".join(path.encode("utf-8", "replace").decode() for path in paths[:_MAX_NAMED])
    if len(paths) > _MAX_NAMED:
        shown += f" and {len(paths) - _MAX_NAMED} more"
    return (
        f"These submodules are empty: {shown}. Kandev fetches nothing from the addresses that a repository "
        "names. In a terminal, git submodule update --init fetches them with the agent’s own access."
    )
