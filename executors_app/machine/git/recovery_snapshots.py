"""The hidden recovery ref that stores a session's uncommitted work, and its restoration into a rebuilt worktree."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from executors_app.machine.git import git_directory, git_failures
from executors_app.machine.git.workspace_git import run_git
from executors_app.wire.errors import RepositoryUnusable
from executors_app.wire.protocol import ApiError

logger = logging.getLogger(__name__)

_RECOVERY_PREFIX: Final = "refs/kandev/recovery/"
KEPT_PREFIX: Final = "refs/kandev/kept/"
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LINE: Final = re.compile(r"^Kandev-(Head|Index|Session): ([A-Za-z0-9][\w-]*)$", re.MULTILINE | re.ASCII)
"""An agent can write such a commit, too: no value may look like an option of git."""
_REF_LINE: Final = re.compile(r"^Kandev-Ref: (\S+)$", re.MULTILINE)
_QUOTED_REF_LINE: Final = re.compile(r"^Kandev-Quoted-Ref: (\S+)$", re.MULTILINE)
_SUBMODULES_LINE: Final = re.compile(r"^Kandev-Submodules: ([0-9a-f]{40,64})$", re.MULTILINE | re.ASCII)
_OPERATION_LINE: Final = re.compile(r"^Kandev-Operation: (\S+)$", re.MULTILINE)
_CONVERTED_LINE: Final = "Kandev-Line-Ends: converted\n"
NO_INDEX: Final = "none"
LINE_ENDS_NOTE: Final = (
    "Some changed files have other line ends than before: git converts them, as core.autocrlf or .gitattributes says."
)
IGNORED_FILES_NOTE: Final = (
    "Files that .gitignore names and empty directories are in no snapshot: those that were in the workspace are not "
    "restored."
)
NO_SNAPSHOT_NOTE: Final = (
    "The repository has no readable snapshot of this session: what was not committed is not restored."
)
IDENTITY: Final = {
    **{f"GIT_{role}_NAME": "Kandev" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "kandev@localhost" for role in ("AUTHOR", "COMMITTER")},
}
"""The environment for commits of Kandev's own."""
_NAMES_PER_CALL: Final = 200
_EVERY_FILE: Final = ("-c", "core.sparseCheckout=false")
"""An agent may also change files that are outside of a sparse checkout."""


RunGit = Callable[..., str]
"""Runs git with its arguments, and returns its output without the last line end; raises its own errors."""


@dataclass(frozen=True, slots=True)
class RecoverySnapshot:
    """The content of a recovery ref."""

    commit: str
    """The commit whose tree is the working tree."""
    head: str
    """The commit that was checked out; empty before the first commit."""
    index: str
    """The commit whose tree is the index."""
    session_id: str
    ref: str | None = None
    """The full name of the branch that was checked out; empty for a detached HEAD; None: unknown."""
    operation: str = ""
    """What git was in the middle of (``merge``, ``rebase``); empty for nothing."""
    submodules: str = ""
    """The commit with the work inside submodules (``saved_submodules``); empty if there is none."""
    converts_line_ends: bool = False
    """Whether files that were changed return with other line ends."""


def session_recovery_ref(session_id: str) -> str:
    """Return the recovery ref of a session; raises ValueError for an id that is not safe in a ref."""
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"{session_id!r} is not a session id")
    return _RECOVERY_PREFIX + session_id


def recovery_message(recovery: RecoverySnapshot, reason: str, branch: str) -> str:
    """Return the message of the working tree's commit, from which ``find_recovery`` reads the other fields."""
    return (
        f"Working tree of {branch or 'a detached HEAD'} ({reason})\n\n"
        f"Kandev-Session: {recovery.session_id}\n"
        f"Kandev-Head: {recovery.head or NO_INDEX}\n"
        f"Kandev-Index: {recovery.index}\n"
        f"{_ref_line(recovery.ref or NO_INDEX)}\n"
        f"Kandev-Operation: {recovery.operation or NO_INDEX}\n"
        + (f"Kandev-Submodules: {recovery.submodules}\n" if recovery.submodules else "")
        + (_CONVERTED_LINE if recovery.converts_line_ends else "")
    )


def _ref_line(ref: str) -> str:
    """Return the line about the branch; git would convert a name that is not UTF-8 in a message, so it is quoted."""
    if ref.isascii() or os.fsencode(ref).decode("utf-8", "replace") == ref:
        return f"Kandev-Ref: {ref}"
    return f"Kandev-Quoted-Ref: {quote_from_bytes(os.fsencode(ref))}"


def find_recovery(git: RunGit, revision: str) -> RecoverySnapshot | None:
    """Read the recovery at a ref or commit; None if there is none."""
    if revision.startswith("refs/"):
        found, _, body = git("for-each-ref", "--format=%(objectname)%0a%(contents)", revision).partition("\n")
    else:
        found, body = revision, git("cat-file", "commit", revision)
    trailers = dict(_LINE.findall(body))
    if set(trailers) != {"Head", "Index", "Session"}:
        return None
    head = "" if trailers["Head"] == NO_INDEX else trailers["Head"]
    about = (trailers["Index"], trailers["Session"], _parse_ref(body), _parse_operation(body))
    submodules = _SUBMODULES_LINE.findall(body)
    converts_line_ends = _CONVERTED_LINE.strip() in body.splitlines()
    return RecoverySnapshot(found, head, *about, submodules[-1] if submodules else "", converts_line_ends)


def _parse_ref(body: str) -> str | None:
    """Return the branch in a recovery's message; an agent can write one, so anything but a branch is no answer."""
    found = [os.fsdecode(unquote_to_bytes(quoted)) for quoted in _QUOTED_REF_LINE.findall(body)]
    found = found or _REF_LINE.findall(body)
    if not found:
        return None
    ref = str(found[-1])
    if ref == NO_INDEX:
        return ""
    if git_directory.is_branch_ref(ref):
        return ref
    return None


def _parse_operation(body: str) -> str:
    found = _OPERATION_LINE.findall(body)
    if found and found[-1] in git_directory.OPERATION_NAMES:
        return str(found[-1])
    return ""


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
        git(*(word for key in listed for word in ("-c", f"{key}=false")), "read-tree", "--reset", *arguments)


def _refresh_index(git: RunGit) -> None:
    """Note in the index which files are unchanged, to save git the comparison; a filter may fail here."""
    try:
        git("update-index", "-q", "--refresh")
    except (RepositoryUnusable, ApiError) as error:
        logger.info("the index was not refreshed: %s", error)


def set_recovery_aside(git: RunGit, recovery: RecoverySnapshot) -> str:
    """Store a recovery under its own ref, which no later snapshot replaces, and return that ref."""
    ref = f"{KEPT_PREFIX}{recovery.session_id}/{recovery.commit[:16]}"
    git("update-ref", ref, recovery.commit)
    return ref


_TIMEOUT: Final = 600.0


def find_session_recovery(run: RunGit, session_id: str) -> RecoverySnapshot | None:
    """Return the newest snapshot of a session if everything in it exists; a damaged one is logged and kept.

    ``run`` raises RepositoryUnusable; without ``exit_code`` in its details, as after a timeout, it is raised again.
    """
    try:
        ref = session_recovery_ref(session_id)
    except ValueError:
        return None
    try:
        found = find_recovery(run, ref)
        if found:
            # Everything that no branch, tag or remote branch has.
            known = ("--not", "--branches", "--tags", "--remotes")
            run("rev-list", "--objects", "--quiet", "--ignore-missing", found.commit, *known)
    except RepositoryUnusable as error:
        if error.details.get("exit_code") is None:
            raise
        logger.warning("session %s: its last snapshot is damaged and was not restored: %s", session_id, error)
        return None
    if found is not None and found.session_id == session_id:
        return found
    return None


def uncommitted_work_on(run: RunGit, found: RecoverySnapshot | None, head: str) -> tuple[RecoverySnapshot | None, str]:
    """Return a snapshot if it was taken at the commit ``head`` (empty: before the first); else set it aside.

    Also return where it is now, as a sentence.
    """
    if found is None or found.head == head:
        return found, ""
    aside = set_recovery_aside(run, found)
    logger.warning(
        "session %s: its branch has new commits since the last snapshot, which was kept at %s", found.session_id, aside
    )
    if not _has_uncommitted_work(run, found):
        return None, ""
    return None, (
        "HEAD has moved since the last snapshot, so the uncommitted work in it is not restored. It is kept: "
        f"git restore --source={aside} -- . writes its files."
    )


def _has_uncommitted_work(run: RunGit, found: RecoverySnapshot) -> bool:
    trees = (f"{commit}^{{tree}}" for commit in (found.head, found.index, found.commit))
    return not found.head or bool(found.submodules) or len(set(run("rev-parse", *trees).split())) > 1


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
    parts = [names[at : at + _NAMES_PER_CALL] for at in range(0, len(names), _NAMES_PER_CALL)]
    return [name for part in parts for name in _split_names(run(*listed, *part))]


def _split_names(listed: str) -> list[str]:
    return listed.split("\0")[:-1]
