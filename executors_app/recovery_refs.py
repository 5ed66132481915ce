"""Read-only view of a session's saved work, without its workspace: from its archive, or the team's repository.

The newest state is the recovery snapshot if nothing was committed since, else the branch. Results have the shapes of
agentctl's answers. Everything is read from git's objects; nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from executors_app.agentctl.workspace import recovery_snapshots
from executors_app.agentctl.workspace.files import describe_content
from executors_app.agentctl.workspace.git import git_log_arguments, parse_git_log
from executors_app.agentctl.workspace.recovery_snapshots import RecoverySnapshot
from executors_app.errors import NotKept, RepositoryUnusable
from executors_app.repositories import bare
from executors_app.repositories.archive import Archive
from executors_app.repositories.git import GitFailed
from executors_app.repositories.team import TeamRepository
from executors_app.workspace_store import execution_storage

CONTENT_LIMIT: Final = 1 << 20
LIST_LIMIT: Final = 4 << 20
_TYPES: Final = {"040000": "directory", "120000": "symlink", "160000": "other"}
_CHANGES: Final = {"A": "added", "D": "deleted", "M": "modified", "T": "type_changed"}
_NAME_STATUS_OPTIONS: Final = ("-r", "-z", "--name-status", "--no-renames")
_PATCH_OPTIONS: Final = ("-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--root")


@dataclass(frozen=True, slots=True)
class SavedWork:
    """The commits that hold a session's files, index and HEAD."""

    source: Archive | TeamRepository
    branch: str
    files: str
    index: str
    head: str
    at: str
    """When the files were saved; ISO 8601."""

    def said(self) -> dict[str, Any]:
        """Return the ``kept`` field that every answer carries."""
        return {"kept": {"commit": self.files, "at": self.at}}


def find_saved_work(repository: Path, session_id: str, branch: str) -> SavedWork:
    """Return the saved work of a session; raises NotKept, GitFailed.

    ``session_id`` is the workspace's id: the session for which its worktree was created.
    """
    source, head = _find_branch(repository, session_id, branch)
    found = recovery_snapshots.find_recovery(source.git.text, recovery_snapshots.session_recovery_ref(session_id))
    files, index = (
        (found.commit, found.index) if found and _is_usable_snapshot(source, found, session_id, head) else (head, head)
    )
    at = source.git.text("log", "-1", "--no-mailmap", "--format=%cI", files, "--")
    return SavedWork(source, branch, files, index, head, at)


def _find_branch(repository: Path, session_id: str, branch: str) -> tuple[Archive | TeamRepository, str]:
    """Return where the branch is saved, and its commit."""
    archive = Archive.of(execution_storage().root, session_id)
    if head := archive.tips().get(f"refs/heads/{branch}"):
        return archive, head
    if not repository.is_dir():
        raise NotKept("The repository of this session is not on this machine.")
    try:
        team = TeamRepository.open(repository)
    except GitFailed:
        raise
    except RepositoryUnusable as error:
        raise NotKept(error.message) from error
    # ``refs`` leaves out symbolic refs, which could show the contents of refs that are not the session's own.
    head = team.refs(f"refs/heads/{branch}").get(f"refs/heads/{branch}") if branch else None
    if head is None:
        raise NotKept("This session's branch no longer exists.")
    return team, head


def _is_usable_snapshot(source: Archive | TeamRepository, found: RecoverySnapshot, session_id: str, head: str) -> bool:
    """Whether a snapshot belongs to this session and to the commit ``head``, and has the index that it names.

    An agent may have written its message, and git would read an id from it that begins with a dash as an option.
    """
    parents = source.git.text("rev-parse", f"{found.commit}^@").split()
    ours = found.session_id == session_id and found.head == head
    return ours and bool(bare.OBJECT_ID.fullmatch(found.index)) and found.index in parents


def list_saved_directory(kept: SavedWork, path: str) -> dict[str, Any]:
    """Return ``{path, entries: [{name, type, size}], truncated, kept}``; raises NotKept."""
    said = _read_git(kept, "ls-tree", "-z", "-l", f"{kept.files}:{_check_path(path)}")
    entries = [_tree_entry(line) for line in said.split(b"\0")[:-1]]
    entries.sort(key=lambda entry: entry["name"])
    return {"path": path, "entries": entries, "truncated": len(said) == LIST_LIMIT, **kept.said()}


def read_saved_content(kept: SavedWork, path: str) -> dict[str, Any]:
    """Return ``{path, size, encoding, binary, content, truncated, hash, kept}``; raises NotKept."""
    found = f"{kept.files}:{_check_path(path)}"
    try:
        git = kept.source.git
        if git.text("cat-file", "-t", found) != "blob":
            raise NotKept("This is not a file.", path=path)
        size = int(git.text("cat-file", "-s", found))
        data = git.read("cat-file", "blob", found, limit=CONTENT_LIMIT)
    except GitFailed as error:
        raise NotKept("There is no such file.", path=path) from error
    return {**describe_content(path, size, data, size > len(data)), **kept.said()}


def saved_status(kept: SavedWork) -> dict[str, Any]:
    """Return ``{branch, head, clean, staged, unstaged, untracked, conflicted, truncated, kept}``."""
    staged, unstaged = _changes(kept, kept.head, kept.index), _changes(kept, kept.index, kept.files)
    untracked = [one["path"] for one in unstaged if one["change"] == "added"]
    unstaged = [one for one in unstaged if one["change"] != "added"]
    return {
        "branch": kept.branch,
        "head": kept.head,
        "clean": not (staged or unstaged or untracked),
        "staged": staged,
        "unstaged": unstaged,
        "untracked": untracked,
        "conflicted": [],
        "truncated": False,
        **kept.said(),
    }


def saved_diff(kept: SavedWork, path: str = "") -> dict[str, Any]:
    """Return ``{path, staged, unstaged, truncated, kept}``; untracked files are part of ``unstaged``."""
    where = ("--", _check_path(path)) if path else ()
    said = [
        _read_git(kept, "--literal-pathspecs", "diff-tree", *_PATCH_OPTIONS, *pair, *where, limit=CONTENT_LIMIT)
        for pair in ((kept.head, kept.index), (kept.index, kept.files))
    ]
    staged, unstaged = (one.decode("utf-8", "replace") for one in said)
    truncated = any(len(one) == CONTENT_LIMIT for one in said)
    return {"path": path, "staged": staged, "unstaged": unstaged, "truncated": truncated, **kept.said()}


def saved_log(kept: SavedWork, limit: int, skip: int) -> dict[str, Any]:
    """Return ``{commits: [{id, parents, author, email, at, subject, body}], more, truncated, kept}``, newest first."""
    said = _read_git(kept, *git_log_arguments(limit + 1, skip, kept.head))
    commits = parse_git_log(said.split(b"\0")[:-1])
    truncated = len(said) == LIST_LIMIT
    return {"commits": commits[:limit], "more": len(commits) > limit, "truncated": truncated, **kept.said()}


def _read_git(kept: SavedWork, *arguments: str, limit: int = LIST_LIMIT) -> bytes:
    try:
        return kept.source.git.read(*arguments, limit=limit)
    except GitFailed as error:
        raise NotKept("There is no such file or directory.") from error


def _check_path(path: str) -> str:
    """Return a path in the form of git's trees: relative, without ``.`` and ``..``; raises NotKept."""
    plain = PurePosixPath(path)
    if plain.is_absolute() or ".." in plain.parts or "\0" in path:
        raise NotKept("There is no such file or directory.", path=path)
    return "" if plain == PurePosixPath() else str(plain)


def _tree_entry(line: bytes) -> dict[str, Any]:
    about, _, name = line.partition(b"\t")
    mode, _, _, size = about.decode().split()
    kind = _TYPES.get(mode, "file")
    known = int(size) if kind in {"file", "symlink"} else None
    return {"name": name.decode("utf-8", "replace"), "type": kind, "size": known}


def _changes(kept: SavedWork, before: str, after: str) -> list[dict[str, str]]:
    words = (
        _read_git(kept, "diff-tree", *_NAME_STATUS_OPTIONS, before, after).decode("utf-8", "replace").split("\0")[:-1]
    )
    pairs = zip(words[::2], words[1::2], strict=False)
    return [{"path": path, "change": _CHANGES.get(letter, letter)} for letter, path in pairs]
