"""Read-only view of a session's saved work, without its workspace: from its archive, or the team's repository.

The newest state is the recovery snapshot if nothing was committed since, else the branch. Results have the shapes of
agentctl's answers. Everything is read from git's objects; nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final

from executors_app.machine.git import recovery_snapshots
from executors_app.machine.git.commit_log import git_log_arguments, parse_git_log
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.recovery_snapshots import RecoverySnapshot
from executors_app.machine.git.saved_submodules import parse_description
from executors_app.repositories import bare
from executors_app.repositories.archive import Archive
from executors_app.repositories.git import VIEW, GitFailed
from executors_app.repositories.git_errors import Cause
from executors_app.repositories.layout import common_directory
from executors_app.repositories.team import TeamRepository
from executors_app.repositories.workspace_store import execution_storage
from executors_app.wire.errors import ExecutorError, NotKept, RepositoryUnusable, RuntimeUnavailable
from executors_app.wire.file_content import describe_content
from executors_app.wire.path_search import PathIndex

CONTENT_LIMIT: Final = 1 << 20
LIST_LIMIT: Final = 4 << 20
_MAX_SUBMODULES: Final = 20
"""Submodules of saved work that are shown; each takes a git of its own."""
_MAX_SEARCHED: Final = 20_000
"""Files that are searched by name: each search lists them again."""
_MAX_FILES: Final = 200
"""Files that are named in each of them."""
_TOO_LARGE: Final = {Cause.MEMORY, Cause.TIME, Cause.OUTPUT, Cause.FILE_SIZE}
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
    submodules: str = ""
    """The commit with the work inside submodules; empty if there is none."""

    def kept_field(self) -> dict[str, Any]:
        """Return the ``kept`` field that every answer carries."""
        return {"kept": {"commit": self.files, "at": self.at}}


def find_saved_work(repository: Path, session_id: str, branch: str) -> SavedWork:
    """Return the saved work of a session; raises NotKept, GitFailed.

    ``session_id`` is the workspace's id: the session for which its worktree was created. If the agent was on another
    branch at the newest snapshot, or its own one is not there, the work is what that snapshot was taken on.
    """
    own, recovery = f"{BRANCH_PREFIX}{branch}", recovery_snapshots.session_recovery_ref(session_id)
    source, refs = _find_source(repository, session_id, own, recovery)
    read = partial(source.git.text, bounds=VIEW)
    found = recovery_snapshots.find_recovery(read, recovery)
    usable = None
    if found and _is_usable_snapshot(source, found, session_id):
        usable = found
    head, shown = refs.get(own, ""), branch
    if usable and usable.head and (not head or usable.ref not in (None, own)):
        head, shown = usable.head, (usable.ref or "").removeprefix(BRANCH_PREFIX)
    if not head:
        raise NotKept(f"Neither the branch {branch} nor a snapshot of this session was found.")
    if usable and usable.head == head:
        files, index, submodules = (usable.commit, usable.index, usable.submodules)
    else:
        files, index, submodules = (head, head, "")
    at = read("log", "-1", "--no-mailmap", "--format=%cI", files, "--")
    return SavedWork(source, shown, files, index, head, at, submodules)


def _find_source(
    repository: Path, session_id: str, own: str, recovery: str
) -> tuple[Archive | TeamRepository, dict[str, str]]:
    """Return where the session's branch or its newest snapshot is saved, and the commits of both, by ref."""
    archive = Archive.of(execution_storage().root, session_id, account=_account_of(repository))
    tips = archive.tips()
    if own in tips or recovery in tips:
        return archive, tips
    if not repository.is_dir():
        raise NotKept("The repository of this session is not on this machine.")
    try:
        team = TeamRepository.open(repository)
    except GitFailed:
        raise
    except RepositoryUnusable as error:
        raise NotKept(error.message) from error
    # ``refs`` leaves out symbolic refs, which could show the contents of refs that are not the session's own.
    return team, team.refs(own, recovery)


def _account_of(repository: Path) -> str:
    """Return whose slots of git a view takes: the team's repository's, also if the archive is shown."""
    try:
        return str(common_directory(repository))
    except (RepositoryUnusable, OSError):
        return str(repository)


def _is_usable_snapshot(source: Archive | TeamRepository, found: RecoverySnapshot, session_id: str) -> bool:
    """Whether a snapshot belongs to this session, and has the index, the HEAD and the submodules that it names.

    An agent may have written its message, and git would read an id from it that begins with a dash as an option. All
    must be its parents: by an id alone, a message could name a commit that is not this session's.
    """
    if found.session_id != session_id:
        return False
    parents = source.git.text("rev-parse", f"{found.commit}^@", bounds=VIEW).split()
    named = [commit for commit in (found.head, found.index, found.submodules) if commit]
    return all(bare.OBJECT_ID.fullmatch(commit) and commit in parents for commit in named)


def list_saved_directory(kept: SavedWork, path: str) -> dict[str, Any]:
    """Return ``{path, entries: [{name, type, size}], truncated, kept}``; raises NotKept."""
    plain, saved = check_saved_path(path), _saved_submodules(kept)
    listed = read_saved_git(kept, "ls-tree", "-z", "-l", _place_of(kept, plain, saved))
    entries = [_tree_entry(line) for line in listed.split(b"\0")[:-1]]
    submodules = {each.path for each in saved}
    for entry in entries:
        if f"{plain}/{entry['name']}".removeprefix("/") in submodules:
            entry["type"] = "directory"
    entries.sort(key=lambda entry: entry["name"])
    return {"path": path, "entries": entries, "truncated": len(listed) == LIST_LIMIT, **kept.kept_field()}


def search_saved_files(kept: SavedWork, query: str) -> dict[str, Any]:
    """Return ``{query, entries: [{path, type}], truncated, kept}``, the best first; raises NotKept."""
    listed = read_saved_git(kept, "ls-tree", "-r", "-z", "--name-only", "--full-tree", kept.files)
    names, is_cut = listed.split(b"\0")[:-1], len(listed) == LIST_LIMIT
    index = PathIndex.from_listing(names, truncated=is_cut, limit=_MAX_SEARCHED)
    return {**index.search(query), **kept.kept_field()}


def read_saved_content(kept: SavedWork, path: str) -> dict[str, Any]:
    """Return ``{path, size, encoding, binary, content, truncated, hash, kept}``; raises NotKept."""
    found = _place_of(kept, check_saved_path(path), _saved_submodules(kept))
    if read_saved_git(kept, "cat-file", "-t", found) != b"blob\n":
        raise NotKept("This is not a file.", path=path)
    size = int(read_saved_git(kept, "cat-file", "-s", found))
    data = read_saved_git(kept, "cat-file", "blob", found, limit=CONTENT_LIMIT)
    return {**describe_content(path, size, data, size > len(data)), **kept.kept_field()}


def saved_status(kept: SavedWork) -> dict[str, Any]:
    """Return ``{branch, head, clean, staged, unstaged, untracked, conflicted, submodules, truncated, kept}``."""
    submodules = list(filter(None, (_submodule_status(kept, each) for each in _saved_submodules(kept))))
    staged, unstaged = _changes(kept, kept.head, kept.index), _changes(kept, kept.index, kept.files)
    untracked = [one["path"] for one in unstaged if one["change"] == "added"]
    unstaged = [one for one in unstaged if one["change"] != "added"]
    return {
        "branch": kept.branch or None,
        "head": kept.head,
        "clean": not (staged or unstaged or untracked or submodules),
        "staged": staged,
        "unstaged": unstaged,
        "untracked": untracked,
        "conflicted": [],
        "submodules": submodules,
        "truncated": False,
        **kept.kept_field(),
    }


def saved_diff(kept: SavedWork, path: str = "") -> dict[str, Any]:
    """Return ``{path, staged, unstaged, truncated, kept}``; untracked files are part of ``unstaged``."""
    (head, index, files), rest = _states_of(kept, path)
    staged = _read_diff(kept, head, index, rest)
    unstaged = _read_diff(kept, index, files, rest)
    return {
        "path": path,
        "staged": staged.decode("utf-8", "replace"),
        "unstaged": unstaged.decode("utf-8", "replace"),
        "truncated": CONTENT_LIMIT in (len(staged), len(unstaged)),
        **kept.kept_field(),
    }


def _states_of(kept: SavedWork, path: str) -> tuple[tuple[str, str, str], str]:
    """Return the states of the repository that contains a path (HEAD, index, files), and the path in it."""
    outside = (kept.head, kept.index, kept.files)
    if not path:
        return outside, ""
    plain = check_saved_path(path)
    around = _submodule_around(plain, _saved_submodules(kept))
    if around is None:
        return outside, plain
    return around.states, plain[len(around.path) + 1 :]


def _read_diff(kept: SavedWork, before: str, after: str, path: str) -> bytes:
    arguments = ["--literal-pathspecs", "diff-tree", *_PATCH_OPTIONS, before, after]
    if path:
        arguments += ["--", path]
    return read_saved_git(kept, *arguments, limit=CONTENT_LIMIT)


def saved_log(kept: SavedWork, limit: int, skip: int) -> dict[str, Any]:
    """Return ``{commits: [{id, parents, author, email, at, subject, body}], more, truncated, kept}``, newest first."""
    output = read_saved_git(kept, *git_log_arguments(limit + 1, skip, kept.head))
    commits = parse_git_log(output.split(b"\0")[:-1])
    truncated = len(output) == LIST_LIMIT
    return {"commits": commits[:limit], "more": len(commits) > limit, "truncated": truncated, **kept.kept_field()}


@dataclass(frozen=True, slots=True)
class _SavedSubmodule:
    """Where the saved work has a submodule."""

    path: str
    states: tuple[str, str, str]
    """The trees of its HEAD, its index and its files."""


def _saved_submodules(kept: SavedWork) -> list[_SavedSubmodule]:
    """Return the submodules with work of their own, outer ones first; what an agent wrote instead is left out."""
    if not kept.submodules:
        return []
    names = read_saved_git(kept, "ls-tree", "-z", "--name-only", kept.submodules).split(b"\0")[:-1]
    found = []
    for name in names[:_MAX_SUBMODULES]:
        if not name.isdigit():
            continue
        place = f"{kept.submodules}:{name.decode()}"
        try:
            about = parse_description(read_saved_git(kept, "cat-file", "blob", f"{place}/about"))
        except (NotKept, ValueError):
            continue
        states = (f"{place}/trees/{about.head}", f"{place}/index", f"{place}/files")
        found.append(_SavedSubmodule(about.path.decode("utf-8", "replace"), states))
    return sorted(found, key=lambda each: each.path.count("/"))


def _submodule_around(path: str, saved: Sequence[_SavedSubmodule]) -> _SavedSubmodule | None:
    """Return the innermost saved submodule that contains a path; None if none does."""
    return next((each for each in reversed(saved) if path.startswith(f"{each.path}/")), None)


def _place_of(kept: SavedWork, path: str, saved: Sequence[_SavedSubmodule]) -> str:
    """Return git's name for a file or directory, also inside a submodule."""
    around = _submodule_around(f"{path}/", saved)
    if around is None:
        return f"{kept.files}:{path}"
    rest = path[len(around.path) + 1 :]
    if rest:
        return f"{around.states[-1]}/{rest}"
    return around.states[-1]


def _submodule_status(kept: SavedWork, saved: _SavedSubmodule) -> dict[str, Any] | None:
    """Return the changed files of a submodule as ``list_submodule_changes`` of agentctl; None if it has none."""
    files = []
    head, index, now = saved.states
    for side, pair in (("staged", (head, index)), ("unstaged", (index, now))):
        for entry in _changes(kept, *pair):
            file = {"path": f"{saved.path}/{entry['path']}", "change": entry["change"], "side": side}
            if side == "unstaged" and entry["change"] == "added":
                file["change"] = file["side"] = "untracked"
            files.append(file)
    if not files:
        return None
    return {"path": saved.path, "files": files[:_MAX_FILES], "count": len(files), "problem": ""}


def read_saved_git(kept: SavedWork, *arguments: str, limit: int = LIST_LIMIT) -> bytes:
    """Return the first ``limit`` bytes of what git says about saved work, which its agent wrote.

    Raises NotKept for what is not there or cannot be shown, RuntimeUnavailable if git is busy.
    """
    try:
        return kept.source.git.read(*arguments, limit=limit)
    except GitFailed as error:
        raise refusal_of(error) from error


def refusal_of(error: GitFailed) -> ExecutorError:
    """Return the error for people whose view of saved work failed."""
    if error.cause is Cause.BUSY:
        return RuntimeUnavailable("Too much saved work is being read at this moment. Try again.")
    if error.cause in _TOO_LARGE:
        return NotKept("This is too large to show. Fetch the session's branch to see it.")
    return NotKept("There is no such file or directory.")


def check_saved_path(path: str) -> str:
    """Return a path in the form of git's trees: relative, without ``.`` and ``..``; raises NotKept."""
    plain = PurePosixPath(path)
    if plain.is_absolute() or ".." in plain.parts or "\0" in path:
        raise NotKept("There is no such file or directory.", path=path)
    if plain == PurePosixPath():
        return ""
    return str(plain)


def _tree_entry(line: bytes) -> dict[str, Any]:
    about, _, name = line.partition(b"\t")
    mode, _, _, size = about.decode().split()
    kind = _TYPES.get(mode, "file")
    entry: dict[str, Any] = {"name": name.decode("utf-8", "replace"), "type": kind, "size": None}
    if kind in {"file", "symlink"}:
        entry["size"] = int(size)
    return entry


def _changes(kept: SavedWork, before: str, after: str) -> list[dict[str, str]]:
    words = (
        read_saved_git(kept, "diff-tree", *_NAME_STATUS_OPTIONS, before, after)
        .decode("utf-8", "replace")
        .split("\0")[:-1]
    )
    pairs = zip(words[::2], words[1::2], strict=False)
    return [{"path": path, "change": _CHANGES.get(letter, letter)} for letter, path in pairs]
