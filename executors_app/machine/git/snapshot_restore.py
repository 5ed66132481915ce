"""Restore a recovery snapshot into a worktree, or over the files of an index that survived."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from executors_app.machine.git import git_failures
from executors_app.machine.git.git_process import setting_options
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot, RunGit
from executors_app.machine.git.repository_git import run_git
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.protocol import ApiError

logger = logging.getLogger(__name__)

_NAMES_PER_CALL: Final = 200
_EVERY_FILE: Final = ("-c", "core.sparseCheckout=false")
"""An agent may also change files that are outside of a sparse checkout."""

_TIMEOUT: Final = 600.0


def restore_recovery(git: RunGit, recovery: RecoverySnapshot) -> None:
    """Restore working tree and index; tracked files are overwritten."""
    _read_tree(git, "-u", recovery.commit)
    if git("config", "--type=bool", "--default=false", "--get", "core.sparseCheckout") == "true":
        _write_outside_files(git, recovery)
    _read_tree(git, recovery.index)
    _refresh_index(git)


def _write_outside_files(git: RunGit, recovery: RecoverySnapshot) -> None:
    """Write the changed files that are outside of a sparse checkout; the index has the tree of the files now."""
    between = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d")
    names = b"".join(os.fsencode(name) + b"\0" for name in _split_names(git(*between, recovery.index, recovery.commit)))
    if names:
        git(*_EVERY_FILE, "update-index", "--no-skip-worktree", "-z", "--stdin", stdin=names)
        git(*_EVERY_FILE, "checkout-index", "--force", "--quiet", "-z", "--stdin", stdin=names)


def _read_tree(git: RunGit, *arguments: str) -> None:
    """Run ``git read-tree --reset``, without a filter that fails.

    git compares files that it has just checked out, and one filter must not cost all other files.
    """
    try:
        git("read-tree", "--reset", *arguments)
    except (RepositoryUnusable, ApiError) as error:
        failure = error.details.get("failure") or getattr(error, "failure", "")
        if failure not in git_failures.FILTER_FAILURES:
            raise
        listed = git("config", "--name-only", "--get-regexp", r"^filter\..*\.required$").splitlines()
        without_filters = setting_options(f"{key}=false" for key in listed)
        git(*without_filters, "read-tree", "--reset", *arguments)


def _refresh_index(git: RunGit) -> None:
    """Note in the index which files are unchanged, to save git the comparison; a filter may fail here."""
    try:
        git("update-index", "-q", "--refresh")
    except (RepositoryUnusable, ApiError) as error:
        logger.info("the index was not refreshed: %s", error)


def restore_uncommitted_work(worktree: Path, recovery: RecoverySnapshot, held: int) -> None:
    """Restore into a worktree that was just created from its branch; ``held`` is the descriptor of its lock."""
    restore_recovery(partial(run_git, worktree, timeout=_TIMEOUT, hold=(held,)), recovery)


def index_beside(workspace: Path) -> Path:
    """Return a path for an index, beside a workspace: inside it, a file or a link of the agent's could be there."""
    return workspace.with_name(f"{workspace.name}.index")


def overlay_uncommitted_work(run: RunGit, draft: Path, recovery: RecoverySnapshot, copy: Path) -> None:
    """Restore over the files of an index that survived and stays unchanged.

    ``run`` takes a file as ``index``, too; ``copy`` is a path for one, which is not in a workspace. Files that were
    staged after the snapshot are newer than it, so they stay unchanged too.
    """
    # A file with a conflict is in no tree, and one that was only announced (git add -N) has no content in the index.
    unmerged = {entry.split("\t", 1)[1] for entry in _split_names(run("ls-files", "--unmerged", "-z"))}
    staged = ("diff-index", "--cached", "--ita-invisible-in-index", "--name-only", "--no-renames", "-z")
    newer = set(_split_names(run(*staged, recovery.index))) - unmerged
    between = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", recovery.index, recovery.commit)
    written = [name for name in _split_names(run(*between, "--diff-filter=d")) if name not in newer]
    removed = [name for name in _split_names(run(*between, "--diff-filter=D")) if name not in newer]
    # Deletions first: where a file was, a directory may follow, or the other way round.
    for name in removed:
        _delete_file(draft, name)
    conflicts = sorted(unmerged - {*written, *removed})
    if not recovery.operation:  # the snapshot is older than the conflicts
        conflicts = _write_conflicts(run, conflicts)
    written += _stored_names(run, recovery, conflicts)
    run(*_EVERY_FILE, "read-tree", recovery.commit, index=copy)
    wanted = b"".join(os.fsencode(name) + b"\0" for name in written)
    run(*_EVERY_FILE, "checkout-index", "--force", "--quiet", "-z", "--stdin", index=copy, stdin=wanted)
    copy.unlink(missing_ok=True)
    _refresh_index(run)


def _delete_file(root: Path, name: str) -> None:
    path = root / name
    if not path.parent.resolve().is_relative_to(root.resolve()):
        return
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        with contextlib.suppress(OSError):  # of a submodule, git has created an empty directory
            path.rmdir()


def _write_conflicts(run: RunGit, names: Sequence[str]) -> list[str]:
    """Write files with conflicts as git merged them, with its marks; return those that one side has deleted."""
    left = []
    for name in names:
        try:
            run("--literal-pathspecs", "checkout", "--quiet", "--merge", "--", name)
        except (RepositoryUnusable, ApiError):
            left.append(name)
    return left


def _stored_names(run: RunGit, recovery: RecoverySnapshot, names: Sequence[str]) -> list[str]:
    """Return those of the names that the snapshot has."""
    listed = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--name-only", recovery.commit, "--")
    stored: list[str] = []
    for start in range(0, len(names), _NAMES_PER_CALL):
        stored += _split_names(run(*listed, *names[start : start + _NAMES_PER_CALL]))
    return stored


def _split_names(listed: str) -> list[str]:
    return listed.split("\0")[:-1]
