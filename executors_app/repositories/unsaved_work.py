"""Whether a worktree has anything that its repository does not have: the proof that is needed before it is removed.

No git runs in the worktree, whose contents an agent has written. Its files are compared with the trees of the newest
snapshot and of HEAD, which git reads on a facade of the team's repository; everything else is read as plain files
without following links. What cannot be compared, or not in time, counts as unsaved.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.machine.git import recovery_snapshots
from executors_app.machine.git.git_directory import (
    linked_git_directory,
    operation_in_progress,
    worktree_of_record,
)
from executors_app.machine.git.worktree_trash import is_locked_by_others
from executors_app.machine.untrusted_files import Directory, Entry, list_opened, open_regular_file
from executors_app.repositories import bare
from executors_app.repositories.layout import read_worktree_head
from executors_app.repositories.team import TeamRepository

SECONDS: Final = 15.0
"""Maximum time to compare one worktree, apart from the call of git that runs when it is over."""
_MAX_ENTRIES: Final = 200_000
_FOLDER_ENTRIES: Final = 50_000
_TREE_BYTES: Final = 32 << 20
_INDEX_BYTES: Final = 64 << 20
_REFLOG_BYTES: Final = 256 << 10
_MAX_COMMITS: Final = 500
_CHUNK: Final = 1 << 20
_COMMIT: Final = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_GITLINK: Final = b"160000"
_LINK: Final = b"120000"
_EXECUTABLE: Final = b"100755"

_RECORD_ENTRIES: Final = 1000
_PLAIN_ENTRIES: Final = frozenset(
    (
        *("HEAD", "ORIG_HEAD", "FETCH_HEAD", "AUTO_MERGE", "COMMIT_EDITMSG", "MERGE_MSG", "MERGE_RR", "SQUASH_MSG"),
        *("index", "gitdir", "commondir", "config.worktree", "info", "logs", "refs", "locked"),
    )
)
"""What git's record of a worktree has that is compared, or is no work."""

Tree = Mapping[bytes, tuple[bytes, bytes]]
"""Mode and object id, by path."""


class Unsaved(Exception):
    """The worktree has to stay; the text says why."""


@dataclass(frozen=True, slots=True)
class RemovableWorktree:
    """A worktree of which the repository has everything."""

    record: Path
    """git's record of it, in the repository."""
    head: str
    """The commit that is checked out."""


def check_worktree(
    team: TeamRepository, path: Path, place: Path, branch: str, caches: Collection[str]
) -> RemovableWorktree:
    """Return the worktree's record and commit if nothing in it is lost with it; raises Unsaved, GitFailed, OSError.

    ``path`` is where it is now and ``place`` where git has it, which differs in the trash. ``branch`` is the session's.
    ``caches`` are names of directories that are no work, unless the repository has files in them.
    """
    until = time.monotonic() + SECONDS
    record = _find_record(team, path, place)
    git_files = team.directory.directory(f"worktrees/{record.name}")
    head = _check_record(team, record, git_files, branch)
    _require_no_mounts(path)
    _require_time(until)
    _require_known_commits(team, git_files, head)
    _require_time(until)
    staged_as, files_as = _state_that_returns(team, place.name, head)
    _require_time(until)
    staged = files = _list_tree(team, staged_as)
    if files_as != staged_as:
        files = _list_tree(team, files_as)
    _compare_index(team, git_files, staged)
    _Comparison(files, team.object_format, caches, until).compare(Directory(path))
    _require_objects(team, staged, files)
    return RemovableWorktree(record, head)


def _require_time(until: float) -> None:
    if time.monotonic() > until:
        raise Unsaved("its repository is too large to compare in time")


def _find_record(team: TeamRepository, path: Path, place: Path) -> Path:
    if path.is_symlink() or not path.is_dir():
        raise Unsaved("it is not a directory of its own")
    record = linked_git_directory(path)
    if record is None or record.parent != team.common / "worktrees" or record.is_symlink():
        raise Unsaved("it is not a worktree of its task's repository")
    listed = worktree_of_record(record)
    if listed is None or listed.name != place.name or listed.parent.resolve() != place.parent.resolve():
        raise Unsaved("git's record names another worktree")
    return record


def _check_record(team: TeamRepository, record: Path, git_files: Directory, branch: str) -> str:
    """Return the commit that is checked out; raises Unsaved for anything in the record that would be lost with it."""
    if is_locked_by_others(record):
        raise Unsaved("it is locked (git worktree lock)")
    if operation := operation_in_progress(record):
        raise Unsaved(f"git {operation} is in progress")
    if os.path.lexists(record / "modules"):
        raise Unsaved("it has submodules, whose commits may be nowhere else")
    if _has_entries(git_files, "refs"):
        raise Unsaved("it has refs of its own")
    _require_plain_record(git_files)
    head = read_worktree_head(git_files)
    commit = head.commit
    if head.ref:
        commit = team.refs(head.ref).get(head.ref, "")
    if not commit or team.commit_of(commit) != commit:
        raise Unsaved("its commit cannot be found in the repository")
    stashes = _read_if_present(team.directory, "logs/refs/stash")
    if len(stashes) == _REFLOG_BYTES:
        raise Unsaved("the repository has too many stashes to look for its own")
    names = {branch, head.branch} - {""}
    if any(os.fsencode(f"n {name}:") in line for line in stashes.splitlines() for name in names):
        raise Unsaved("the repository has a stash of it")
    return commit


def _require_plain_record(git_files: Directory) -> None:
    """Raise Unsaved for anything in git's record that is not known to be no work, such as MERGE_AUTOSTASH."""
    with git_files.opened("") as opened:
        names = {entry.name for entry in list_opened(opened, _RECORD_ENTRIES)}
    if unknown := names - _PLAIN_ENTRIES:
        raise Unsaved(f"git's record of it has {_shown(os.fsencode(min(unknown)))}")


def _read_if_present(directory: Directory, relative: str) -> bytes:
    """Return the beginning of a file; empty only if it is not there. Raises OSError: an unread file proves nothing."""
    try:
        descriptor = directory.open_file(relative)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_REFLOG_BYTES)


def _has_entries(directory: Directory, relative: str) -> bool:
    """Whether a directory is there and not empty. Raises OSError."""
    try:
        with directory.opened(relative) as opened:
            return bool(list_opened(opened, 1))
    except FileNotFoundError:
        return False


def _require_no_mounts(path: Path) -> None:
    inside = os.fsencode(os.path.realpath(path))
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123
        places = [line.split(b" ")[4] for line in file]
    plain = [re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), place) for place in places]
    if any(place == inside or place.startswith(inside + b"/") for place in plain):
        raise Unsaved("another file system is mounted in it")


def _require_known_commits(team: TeamRepository, git_files: Directory, head: str) -> None:
    """Raise Unsaved for a commit that was checked out here and that no branch, tag or other ref has."""
    reflog, left = (_read_if_present(git_files, name) for name in ("logs/HEAD", "ORIG_HEAD"))
    lines = [*reflog.splitlines(), left]
    commits = {head, *(found.decode() for line in lines for found in _COMMIT.findall(line)[:2])}
    commits = {commit for commit in commits if commit.strip("0")}
    if len(reflog) == _REFLOG_BYTES or len(commits) > _MAX_COMMITS:
        raise Unsaved("too many commits were made in it to look for all of them")
    kinds = bare.object_types(team.git, commits)
    present = [commit for commit in commits if kinds.get(commit) == "commit"]
    team.refs()  # the facade has the refs as they are now
    if team.text("rev-list", "--max-count=1", *present, "--not", "--all"):
        raise Unsaved("commits that were made in it are on no branch")


def _state_that_returns(team: TeamRepository, session_id: str, head: str) -> tuple[str, str]:
    """Return the commits whose trees are the index and the files of the worktree if it is made again.

    That is the newest snapshot also where all its changes were undone since: they would come back.
    """
    found = recovery_snapshots.find_session_recovery(team.text, session_id)
    if found is None or found.head != head:
        return head, head
    if found.submodules:
        raise Unsaved("its last snapshot has work inside submodules")
    return found.index, found.commit


def _require_objects(team: TeamRepository, *trees: Tree) -> None:
    """Raise Unsaved if the repository lacks the content of a file: that of the worktree is then the only one."""
    wanted = {object_id.decode() for tree in trees for mode, object_id in tree.values() if mode != _GITLINK}
    if wanted - bare.object_types(team.git, wanted).keys():
        raise Unsaved("its repository is damaged: it lacks the content of files")


def _list_tree(team: TeamRepository, commit: str) -> Tree:
    if not bare.OBJECT_ID.fullmatch(commit):
        raise Unsaved("its snapshot cannot be read")
    tree = {}
    for line in _list_files(team, "ls-tree", "-r", "-z", "--full-tree", commit):
        about, _, path = line.partition(b"\t")
        mode, _, object_id = about.split(b" ")
        tree[path] = (mode, object_id)
    return tree


def _list_files(team: TeamRepository, *arguments: str) -> list[bytes]:
    listed = team.git.read(*arguments, limit=_TREE_BYTES)
    if len(listed) == _TREE_BYTES or listed.count(b"\0") > _MAX_ENTRIES:
        raise Unsaved("it has too many files to compare")
    return listed.split(b"\0")[:-1]


def _compare_index(team: TeamRepository, git_files: Directory, tree: Tree) -> None:
    """Raise Unsaved if the index has something else than a tree. git reads a copy of it."""
    content = git_files.read("index", _INDEX_BYTES)
    if content is None or len(content) == _INDEX_BYTES:
        raise Unsaved("its index cannot be read")
    (team.git.directory / "index").write_bytes(content)
    staged = {}
    for line in _list_files(team, "ls-files", "--stage", "-z"):
        about, _, path = line.partition(b"\t")
        mode, object_id, stage = about.split(b" ")
        if stage != b"0":
            raise Unsaved("it has conflicts")
        staged[path] = (mode, object_id)
    if staged != tree:
        raise Unsaved("changes are staged that no snapshot has")


class _Comparison:
    """Compares the files of a worktree with a tree, within limits."""

    def __init__(self, tree: Tree, object_format: str, caches: Collection[str], until: float):
        self._tree, self._format, self._until = tree, object_format, until
        self._caches = {os.fsencode(name) for name in caches}
        self._folders = _folders_of(tree)
        self._seen: set[bytes] = set()
        self._entries = 0

    def compare(self, root: Directory) -> None:
        """Raise Unsaved at the first difference, OSError."""
        device = os.fstat(root.descriptor).st_dev
        waiting = [b""]
        while waiting:
            folder = waiting.pop()
            with root.opened(os.fsdecode(folder)) as opened:
                if os.fstat(opened).st_dev != device:
                    raise Unsaved("another file system is mounted in it")
                entries = list_opened(opened, _FOLDER_ENTRIES)
                self._count(len(entries))
                for entry in entries:
                    path = b"/".join(filter(None, (folder, os.fsencode(entry.name))))
                    if path != b".git" and self._is_to_be_entered(opened, entry, path):
                        waiting.append(path)
        self._require_all_seen()

    def _count(self, number: int) -> None:
        self._entries += number
        if number == _FOLDER_ENTRIES or self._entries > _MAX_ENTRIES or time.monotonic() > self._until:
            raise Unsaved("it has too many files to compare in time")

    def _is_to_be_entered(self, folder: int, entry: Entry, path: bytes) -> bool:
        name = os.fsencode(entry.name)
        if name == b".git":
            raise Unsaved(f"it has another repository in {_shown(path.rpartition(b'/')[0])}")
        if not entry.is_directory:
            self._compare_file(folder, entry, path)
            return False
        if path in self._tree:
            if self._tree[path][0] != _GITLINK:
                raise Unsaved(f"{_shown(path)} differs from the last snapshot")
            if self._list_folder(folder, entry.name):
                raise Unsaved("it has submodules, whose commits may be nowhere else")
            return False
        return path in self._folders or name not in self._caches

    @staticmethod
    def _list_folder(folder: int, name: str) -> list[Entry]:
        opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            return list_opened(opened, 1)
        finally:
            os.close(opened)

    def _compare_file(self, folder: int, entry: Entry, path: bytes) -> None:
        known = self._tree.get(path)
        if known is None:
            raise Unsaved(f"{_shown(path)} is ignored by git, or newer than the last snapshot")
        self._seen.add(path)
        if known != self._state_of(folder, entry):
            raise Unsaved(f"{_shown(path)} differs from the last snapshot")

    def _state_of(self, folder: int, entry: Entry) -> tuple[bytes, bytes]:
        if entry.is_link:
            target = os.fsencode(os.readlink(entry.name, dir_fd=folder))
            digest = self._begin(len(target))
            digest.update(target)
            return _LINK, digest.hexdigest().encode()
        descriptor = open_regular_file(folder, entry.name)
        try:
            about = os.fstat(descriptor)
            digest = self._begin(about.st_size)
            while chunk := os.read(descriptor, _CHUNK):
                digest.update(chunk)
                self._count(0)
        finally:
            os.close(descriptor)
        mode = b"100644"
        if about.st_mode & stat.S_IXUSR:
            mode = _EXECUTABLE
        return mode, digest.hexdigest().encode()

    def _begin(self, size: int) -> hashlib._Hash:
        digest = hashlib.new(self._format, usedforsecurity=False)
        digest.update(b"blob %d\0" % size)
        return digest

    def _require_all_seen(self) -> None:
        missing = [path for path, (mode, _) in self._tree.items() if mode != _GITLINK and path not in self._seen]
        if missing:
            raise Unsaved(f"{_shown(min(missing))} was deleted since the last snapshot")


def _folders_of(tree: Tree) -> set[bytes]:
    """Return the folders of all files, within limits: a small tree can name very many folders, each very deep."""
    folders: set[bytes] = set()
    size = 0
    for path in tree:
        folder = path.rpartition(b"/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            size += len(folder)
            if size > _TREE_BYTES:
                raise Unsaved("it has too many folders to compare")
            folder = folder.rpartition(b"/")[0]
    return folders


def _shown(path: bytes) -> str:
    return repr(path.decode("utf-8", "replace")[:200])
