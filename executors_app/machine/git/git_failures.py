"""Why git failed, in words that people can act on, and whether the same call can succeed later by itself.

git's messages are matched (with ``LC_ALL=C``) against one table. A failure that will recur until somebody changes
something is permanent: it is reported once, with its cause and the next step, instead of being tried again and again.
A message that matches no row stays temporary.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FILTER_FAILURES: Final = frozenset({"filter_failed", "filter_process_failed"})
"""Names of the failures of a program that turns files into blobs and back."""
_STALE_LOCK_SECONDS: Final = 600.0
"""Age at which a lock file must be a killed git's: git holds one for the time of a single operation."""

_ERRNO_MESSAGES: Final[Mapping[int, str]] = {
    number: os.strerror(number)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
}


@dataclass(frozen=True, slots=True)
class GitFailure:
    """A failure with a known cause."""

    name: str
    permanent: bool
    cause: str
    """A sentence about what is wrong."""
    next_step: str
    """A sentence about what to do."""

    @property
    def sentence(self) -> str:
        """Cause and next step."""
        return f"{self.cause} {self.next_step}"


@dataclass(frozen=True, slots=True)
class FailureRule:
    """One row: the messages that it matches, and the sentences about them, with the pattern's groups in braces."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    next_step: str
    permanent: bool = True


def _rule(name: str, pattern: str, cause: str, next_step: str, *, permanent: bool = True) -> FailureRule:
    return FailureRule(name, re.compile(pattern, re.IGNORECASE), cause, next_step, permanent)


FAILURE_RULES: Final = (
    _rule(
        "branch_in_the_way",
        r"'refs/heads/(?P<taken>[^']+)' exists; cannot create 'refs/heads/(?P<branch>[^']+)'",
        "The branch {branch} cannot be created, because the repository has a branch named {taken}.",
        "Rename that branch (git branch -m {taken} NEW-NAME), then try again.",
    ),
    _rule(
        "branch_exists",
        r"a branch named '(?P<branch>[^']+)' already exists",
        "The repository already has a branch named {branch}.",
        "Rename that branch (git branch -m {branch} NEW-NAME), then try again.",
    ),
    _rule(
        # git compares the names of branches exactly, and the file system may not: then a branch Kandev is the file in
        # which the directory of kandev/x would have to be.
        "branch_file_in_the_way",
        r"cannot lock ref 'refs/heads/(?P<branch>[^']+)': unable to create lock file [^\n]*; non-directory in the way",
        "The branch {branch} cannot be created, because a file is where its directory would be. On a file system that "
        "does not distinguish upper and lower case, that is a branch whose name differs only in case.",
        "Rename that branch (git branch --list --ignore-case lists it), then try again.",
    ),
    _rule(
        "names_differ_in_case",
        r"case-insensitive file ?system|differ only in cas(?:e|ing)|case[- ]insensitive(?:ly)? (?:collision|conflict)",
        "The repository has names that differ only in upper and lower case, which this file system does not "
        "distinguish.",
        "Rename all but one of them in the repository, then try again.",
    ),
    _rule(
        "branch_checked_out_elsewhere",
        r"'(?P<branch>[^'\n]+)' is already (?:checked out|used by worktree) at '(?P<place>[^'\n]+)'",
        "The branch {branch} is checked out at {place}.",
        "Switch to another branch there (or run git worktree prune if that directory is gone), then try again.",
    ),
    _rule(
        "worktree_locked",
        r"'(?P<place>[^'\n]+)' is a missing but locked worktree",
        "git has locked the worktree {place}, whose directory is missing.",
        "Run git worktree unlock {place}, then try again.",
    ),
    _rule(
        "filter_failed",
        r"(?:smudge|clean) filter '?(?P<filter>[^'\n]+?)'? failed",
        "A file of the repository needs the filter {filter}, and its program failed or is not installed here.",
        "Install that program where the session runs, then try again.",
    ),
    _rule(
        # git talks to such a program through pipes, and fetches nothing here: if the program ends at once, git may
        # notice that first, and then it does not name the filter.
        "filter_process_failed",
        r"the remote end hung up unexpectedly|initialization for subprocess '[^'\n]*' failed|packet write [^\n]*failed"
        r"|cannot (?:run|fork to run) [^\n]*filter|: \d+: [^\n]+: not found|command not found",
        "A file of the repository needs a filter, and its program failed or is not installed here.",
        "Install that program where the session runs, then try again.",
    ),
    _rule(
        "disk_full",
        r"no space left on device|disk quota exceeded",
        "The disk is full.",
        "Free some space where the session’s files are, then try again.",
    ),
    _rule(
        "read_only",
        r"read-only file system",
        "The file system is read-only.",
        "Make it writable, then try again.",
    ),
    _rule(
        "dubious_ownership",
        r"detected dubious ownership in repository at '(?P<place>[^'\n]+)'",
        "The repository {place} belongs to another user, so git does not use it.",
        "Change its owner, or add it to safe.directory for the user of Kandev, then try again.",
    ),
    _rule(
        "objects_missing",
        r"promisor (?:remote|object)|shallow file has changed|could not fetch [0-9a-f]{40}",
        "The repository is a partial or shallow clone, and objects that are needed are not in it.",
        "Clone it without --filter and --depth (or run git fetch --unshallow in it), then try again.",
    ),
    _rule(
        "damaged_index",
        r"index file (?:smaller than expected|corrupt|open failed)|unable to map index file|bad signature 0x[0-9a-f]+"
        r"|bad index (?:version|file)|index uses [^\n]* extension|unknown index entry format|in the index, near path"
        r"|broken index, expect|cannot stat the open index",
        "The index of the worktree, in which git notes what is staged, is damaged.",
        "Delete it (git rev-parse --git-path index names the file) and run git reset there, then try again.",
    ),
    _rule(
        "corrupt_object",
        r"(?:object|packfile|pack) [^\n]*(?:is corrupt|is empty)|inflate: data stream error"
        r"|(?:unable to read|bad) (?:tree|object|blob) [^\n]*[0-9a-f]{40}|hash mismatch"
        r"|unable to read sha1 file|unable to read [0-9a-f]{40}|(?:file |invalid )?object [0-9a-f]{40}[^\n]*missing",
        "The repository is damaged: git cannot read one of its objects.",
        "Run git fsck in the repository and restore what it reports, for example from another clone. Then try again.",
    ),
    _rule(
        "lock_file",
        r"unable to create '(?P<lock>[^'\n]+\.lock)': file exists",
        "Another git is using the repository, or one that was killed has left the lock file {lock}.",
        "If no git is running there, delete that file and try again.",
        permanent=False,
    ),
    _rule(
        "line_ends",
        r"(?:CR)?LF would be replaced by (?:CR)?LF in (?P<path>[^\n]+)",
        "git would change the line ends of {path}, which the setting core.safecrlf forbids.",
        "Convert the line ends of that file, or set core.safecrlf to warn, then try again.",
    ),
    _rule(
        "repository_without_commit",
        r"'(?P<path>[^\n]+)/' does not have a commit checked out",
        "{path} is a repository of its own that has no commit yet, so git cannot add it.",
        "Make a commit in it, or remove its .git, then try again.",
    ),
    _rule(
        "path_too_long",
        r"file ?name too long",
        "A path in the repository is too long for this file system.",
        "Use a shorter data directory (KANDEV_DATA_DIR) or rename that path in the repository, then try again.",
    ),
    _rule(
        "invalid_path",
        r"invalid path '(?P<path>[^'\n]+)'",
        "The repository contains the path {path}, which git does not create here.",
        "Rename it in the repository, then try again.",
    ),
    _rule(
        "unknown_format",
        r"unknown repository (?:extension|version)|expected git repo version|unsupported repository",
        "The repository has a format that this version of git does not know.",
        "Install a newer git where the session runs, then try again.",
    ),
    _rule(
        "bad_setting",
        r"bad config line \d+|bad (?:numeric|boolean) config value|bad config (?:value|variable)"
        r"|unable to parse [^\n]*config|missing value for",
        "A setting of the repository is invalid, so git does not run in it.",
        "Correct the configuration of the repository (git config --list --show-origin names the line), then try again.",
    ),
    _rule(
        "permission",
        r"permission denied|operation not permitted|insufficient permission",
        "Kandev may not read or write a file of the repository.",
        "Give the user of Kandev access to it, then try again.",
    ),
)


def explain_failure(message: str) -> GitFailure | None:
    """Return the known cause of a message of git; None if no row matches.

    A lock file that is older than ten minutes is a killed git's, and its failure therefore permanent.
    """
    for rule in FAILURE_RULES:
        if found := rule.pattern.search(message):
            words = {name: value or "" for name, value in found.groupdict().items()}
            permanent = rule.permanent or _is_stale_lock(words.get("lock", ""))
            return GitFailure(rule.name, permanent, rule.cause.format(**words), rule.next_step.format(**words))
    return None


def _is_stale_lock(path: str) -> bool:
    try:
        return bool(path) and time.time() - os.lstat(path).st_mtime > _STALE_LOCK_SECONDS
    except (OSError, ValueError):
        return False


def explain_os_error(error: OSError) -> GitFailure | None:
    """Return the known cause of an operating system's error; None for one that may pass by itself."""
    message = _ERRNO_MESSAGES.get(error.errno or 0)
    if message:
        return explain_failure(message)
    return None
