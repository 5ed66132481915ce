"""The hidden recovery ref that stores a session's uncommitted work: how it is named, written and found."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from executors_app.machine.git import git_directory
from executors_app.wire.errors import RepositoryUnusable

logger = logging.getLogger(__name__)

_RECOVERY_PREFIX: Final = "refs/kandev/recovery/"
KEPT_PREFIX: Final = "refs/kandev/kept/"
TURNS_PREFIX: Final = "refs/kandev/turns/"
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
    "GIT_AUTHOR_NAME": "Kandev",
    "GIT_AUTHOR_EMAIL": "kandev@localhost",
    "GIT_COMMITTER_NAME": "Kandev",
    "GIT_COMMITTER_EMAIL": "kandev@localhost",
}
"""The environment for commits of Kandev's own."""

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


def session_turns_ref(session_id: str) -> str:
    """Return the ref that keeps the snapshots of a session's past turns; raises ValueError like the other one."""
    if not _SESSION_ID.fullmatch(session_id):
        raise ValueError(f"{session_id!r} is not a session id")
    return TURNS_PREFIX + session_id


def recovery_message(recovery: RecoverySnapshot, reason: str, branch: str) -> str:
    """Return the message of the working tree's commit, from which ``find_recovery`` reads the other fields."""
    message = (
        f"Working tree of {branch or 'a detached HEAD'} ({reason})\n\n"
        f"Kandev-Session: {recovery.session_id}\n"
        f"Kandev-Head: {recovery.head or NO_INDEX}\n"
        f"Kandev-Index: {recovery.index}\n"
        f"{_ref_line(recovery.ref or NO_INDEX)}\n"
        f"Kandev-Operation: {recovery.operation or NO_INDEX}\n"
    )
    if recovery.submodules:
        message += f"Kandev-Submodules: {recovery.submodules}\n"
    if recovery.converts_line_ends:
        message += _CONVERTED_LINE
    return message


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
    head = trailers["Head"]
    if head == NO_INDEX:
        head = ""
    return RecoverySnapshot(
        commit=found,
        head=head,
        index=trailers["Index"],
        session_id=trailers["Session"],
        ref=_parse_ref(body),
        operation=_parse_operation(body),
        submodules=_parse_submodules(body),
        converts_line_ends=_CONVERTED_LINE.strip() in body.splitlines(),
    )


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


def _parse_submodules(body: str) -> str:
    commits = _SUBMODULES_LINE.findall(body)
    if not commits:
        return ""
    return str(commits[-1])


def set_recovery_aside(git: RunGit, recovery: RecoverySnapshot) -> str:
    """Store a recovery under its own ref, which no later snapshot replaces, and return that ref."""
    ref = f"{KEPT_PREFIX}{recovery.session_id}/{recovery.commit[:16]}"
    git("update-ref", "--no-deref", ref, recovery.commit)
    return ref


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
