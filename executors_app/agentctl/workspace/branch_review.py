"""What the whole branch has changed since it left its base, committed and not: files, and the hunks of some.

All calls block.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from executors_app.agentctl.workspace.changes import checked_path
from executors_app.agentctl.workspace.paths import open_path
from executors_app.agentctl.workspace.status_format import STATUS, parse_conflicts, parse_git_status
from executors_app.machine.git import branch_changes, git_directory
from executors_app.machine.git.branch_changes import (
    ANSWER_LIMIT,
    EMPTY_TREES,
    Change,
    ChangedFile,
    Comparison,
    Conflict,
    Content,
    Problem,
)
from executors_app.machine.git.commit_log import git_log_arguments, parse_git_log
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.tree_changes import HunkReader, ReadGit
from executors_app.machine.git.workspace_git import GitError, GitOutput, WorkspaceGit
from executors_app.wire.protocol import ApiError, validation_error

_LIST_LIMIT: Final = 8 << 20
_HASHED_FILE: Final = 8 << 20
_HASHED: Final = 64 << 20
"""Bytes of uncommitted content that one list reads; files beyond them have no version."""
_BINARY_HEAD: Final = 8000
"""Bytes in which git looks for a NUL, which makes a file binary."""
_SHA1_LENGTH, _SHA256_LENGTH = 40, 64
_BASE_KEY: Final = "kandev.base"
_MAX_BASE: Final = 255
_SYMLINK: Final = "120000"
_WITHOUT_OURS: Final = {Conflict.DELETED_BY_US, Conflict.ADDED_BY_THEM}
_EXACT: Final = "surrogateescape"
_UNKNOWN_SIGN: Final = "\ufffd"


def list_branch_changes(git: WorkspaceGit, base: str) -> dict[str, Any]:
    """Return ``{base, branch, head, ahead, behind, upstream, operation, commits, files, ...}``; raises ApiError.

    ``base`` is a branch, a tag or a commit. Without a usable one, only uncommitted changes are listed.
    """
    status = git.compare(*STATUS, limit=_LIST_LIMIT)
    state = parse_git_status(status.fields, errors=_EXACT)
    compared = _comparison(git, base, state["head"])
    ahead, behind = _distance(git, compared.tip, state["head"])
    return {
        "base": compared.to_json(),
        "branch": _readable(state["branch"] or "") or None,
        "head": state["head"],
        "ahead": ahead,
        "behind": behind,
        "upstream": _upstream(git, state["branch"], state["head"]),
        "operation": _operation(git),
        **_list_commits(git, compared, state["head"]),
        **_list_files(git, compared.tree, status, state),
    }


def list_uncommitted(git: WorkspaceGit, base: str) -> dict[str, Any]:
    """Return what ``list_branch_changes`` returns, of what is not committed; ``base`` says which commits it has."""
    status = git.compare(*STATUS, limit=_LIST_LIMIT)
    state = parse_git_status(status.fields, errors=_EXACT)
    tree = state["head"] or _empty_tree(git)
    return {**_describe(git, base, state["branch"], state["head"]), **_list_files(git, tree, status, state)}


def describe_branch(git: WorkspaceGit, base: str) -> dict[str, Any]:
    """Return what ``list_branch_changes`` returns without files, and without a comparison with ``base``."""
    head = _resolve(git, "HEAD") or None
    folder = git_directory.git_directory_of(git.root)
    branch = git_directory.read_head(folder).branch if folder else ""
    return _describe(git, base, branch, head)


def _describe(git: WorkspaceGit, base: str, branch: str | None, head: str | None) -> dict[str, Any]:
    return {
        "base": None,
        "branch": _readable(branch or "") or None,
        "head": head,
        "ahead": None,
        "behind": None,
        "upstream": None,
        "operation": _operation(git),
        **_list_commits(git, _comparison(git, base, head), head),
    }


def _list_commits(git: WorkspaceGit, compared: Comparison, head: str | None) -> dict[str, Any]:
    """Return the branch's newest commits since its base; null if it is not known which those are."""
    if head is None or compared.tip is None:
        return {"commits": None, "more_commits": False}
    start = f"{compared.start}..{head}" if compared.start else head
    found = git.run(*git_log_arguments(branch_changes.MAX_COMMITS + 1, 0, start), limit=_LIST_LIMIT)
    return branch_changes.name_commits(parse_git_log(found.fields))


def _list_files(git: WorkspaceGit, tree: str, status: GitOutput, state: dict[str, Any]) -> dict[str, Any]:
    """Return ``{files, count, ...}``: how the working tree differs from a tree."""
    output = git.compare(*branch_changes.list_arguments("diff", tree), limit=_LIST_LIMIT)
    files = branch_changes.in_order(branch_changes.parse_changes(output.fields))
    if output.truncated:  # before the numbers of lines, which git writes after all files
        arguments = branch_changes.list_arguments("diff", tree, names=False)
        branch_changes.note_counts(files, git.compare(*arguments, limit=_LIST_LIMIT).fields)
    contents = _Contents(git, tree)
    _note_state(files, state, parse_conflicts(status.fields))
    contents.fill_in(files)
    others: list[ChangedFile] = []
    if any(branch_changes.may_be_line_ends(file) for file in files):
        arguments = branch_changes.list_arguments("diff", tree, ignore_line_ends=True)
        others = branch_changes.parse_changes(git.compare(*arguments, limit=_LIST_LIMIT).fields)
    branch_changes.mark_small_changes(files, others)
    left_out = contents.add_new_files(files, state["untracked"])
    files = branch_changes.in_order(files)
    return branch_changes.summarize(files, truncated=output.truncated or status.truncated, more=left_out)


def branch_hunks(git: WorkspaceGit, base: str, paths: Sequence[str], context: int) -> dict[str, Any]:
    """Return ``{base, files: [{path, old_path, change, version, hunks, truncated, cut, left_out}]}``; raises ApiError.

    ``change`` is empty for a file that does not differ. A file for which the answer has no more room is ``left_out``.
    """
    status = _status_of(git, paths)
    compared = _comparison(git, base, _head_of(status))
    return {"base": compared.to_json(), "files": _read_hunks(git, compared.tree, status, paths, context)}


def uncommitted_hunks(git: WorkspaceGit, paths: Sequence[str], context: int) -> dict[str, Any]:
    """Return what ``branch_hunks`` returns, of what is not committed; raises ApiError."""
    status = _status_of(git, paths)
    tree = _head_of(status) or _empty_tree(git)
    return {"base": None, "files": _read_hunks(git, tree, status, paths, context)}


def _head_of(status: GitOutput) -> str | None:
    head: str | None = parse_git_status(status.fields)["head"]
    return head


def _read_hunks(
    git: WorkspaceGit, tree: str, status: GitOutput, paths: Sequence[str], context: int
) -> list[dict[str, Any]]:
    state = parse_git_status(status.fields, errors=_EXACT)
    # Of all files, because a renamed one is found by two paths, and is named by one of them.
    arguments = branch_changes.list_arguments("diff", tree, counts=False)
    listed = branch_changes.parse_changes(git.compare(*arguments, limit=_LIST_LIMIT).fields)
    chosen = [file for file in listed if branch_changes.as_text(file.path) in paths]
    contents = _Contents(git, tree)
    _note_state(chosen, state, parse_conflicts(status.fields))
    contents.fill_in_ids(chosen)
    branch_changes.mark_small_changes(chosen, chosen)
    contents.add_new_files(chosen, [path for path in state["untracked"] if _readable(path) in paths])
    found = {branch_changes.as_text(file.path): file for file in chosen}
    reader = _WorkspaceHunkReader(reader_of(git), "diff", (tree,), context, ANSWER_LIMIT, root=git.root)
    return [reader.read(path, found.get(path)) for path in paths]


def reader_of(git: WorkspaceGit) -> ReadGit:
    """Return what reads differences in a workspace."""

    def read_git(arguments: Sequence[str], limit: int) -> tuple[bytes, bool]:
        output = git.compare(*arguments, limit=limit)
        return output.data, output.truncated

    return read_git


def base_of(git: WorkspaceGit, requested: str, seeded: str) -> str:
    """Return the name of the base: as requested, as the session was started, or as its own repository notes it."""
    if requested or seeded:
        return requested or seeded
    noted = git.run("config", "--default", "", "--get", _BASE_KEY, good=(0, 1), all_settings=True).text
    return _readable(noted[:_MAX_BASE])


def parse_paths(values: Sequence[str]) -> list[str]:
    """Return the paths of a request; raises ApiError."""
    if not 1 <= len(values) <= branch_changes.MAX_PATHS:
        raise validation_error(f"name between 1 and {branch_changes.MAX_PATHS} paths", field="path")
    return list(dict.fromkeys(values))


def _status_of(git: WorkspaceGit, paths: Sequence[str]) -> GitOutput:
    """Return git's status of some files; of all if one may have another name, because it is no UTF-8.

    Raises ApiError for a path that leads out of the workspace.
    """
    for path in paths:
        checked_path(git.root, path)
    chosen = paths
    if any(_UNKNOWN_SIGN in path for path in paths):
        chosen = ()
    return git.compare("--literal-pathspecs", *STATUS, "--", *chosen, limit=_LIST_LIMIT)


def _readable(name: str) -> str:
    """Return a name from git, which may be no UTF-8, as text for JSON."""
    return branch_changes.as_text(os.fsencode(name))


def _comparison(git: WorkspaceGit, base: str, head: str | None) -> Comparison:
    tip = _commit_of(git, base)
    if not base or tip is None:
        problem = Problem.NOT_FOUND if base else Problem.NO_BASE
        return Comparison(base, None, head, head or _empty_tree(git), problem)
    common: list[str] = []
    if head is not None:
        common = git.run("merge-base", "--end-of-options", tip, head, good=(0, 1)).text.split()
    if not common:
        return Comparison(base, tip, None, _empty_tree(git), Problem.UNRELATED)
    return Comparison(base, tip, common[0], common[0], "")


def _commit_of(git: WorkspaceGit, name: str) -> str | None:
    if not name or len(name) > _MAX_BASE or name.startswith("-") or not name.isprintable():
        return None
    for revision in git_directory.revisions_for(name):
        if found := _resolve(git, revision):
            return found
    return None


def _resolve(git: WorkspaceGit, revision: str) -> str:
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return git.run(*arguments, good=(0, 1, 128)).text


def _empty_tree(git: WorkspaceGit) -> str:
    is_sha1 = git.text("rev-parse", "--show-object-format") == "sha1"
    return EMPTY_TREES[_SHA1_LENGTH if is_sha1 else _SHA256_LENGTH]


def _distance(git: WorkspaceGit, tip: str | None, head: str | None) -> tuple[int | None, int | None]:
    """Return how many commits the branch has that ``tip`` lacks, and the other way round; None if it is not known."""
    if tip is None or head is None:
        return None, None
    try:
        ahead, behind = git.text("rev-list", "--left-right", "--count", f"{head}...{tip}", "--").split()
    except (GitError, ValueError):
        return None, None
    return int(ahead), int(behind)


def _upstream(git: WorkspaceGit, branch: str | None, head: str | None) -> dict[str, Any] | None:
    """Return ``{name, ahead, behind}`` of the branch's counterpart at a remote, as it was last fetched or pushed."""
    if not branch:
        return None
    # Which branch that is, is a setting of the repository; reading it starts no program.
    arguments = ("for-each-ref", "--count=1", "--format=%(upstream)", f"{BRANCH_PREFIX}{branch}")
    name = git.run(*arguments, all_settings=True, good=(0, 128, 129)).text
    if not git_directory.is_ref(name):
        return None
    commit = _resolve(git, name)
    if not commit:
        return None
    ahead, behind = _distance(git, commit, head)
    shown = _readable(name.removeprefix("refs/remotes/").removeprefix(BRANCH_PREFIX))
    return {"name": shown, "ahead": ahead, "behind": behind}


def _operation(git: WorkspaceGit) -> str | None:
    folder = git_directory.git_directory_of(git.root)
    if folder is None:
        return None
    return git_directory.operation_in_progress(folder) or None


def _note_state(files: Sequence[ChangedFile], state: dict[str, Any], conflicts: Mapping[str, str]) -> None:
    """Mark what is not committed yet, and what is in conflict."""
    entries = [*state["staged"], *state["unstaged"]]
    # Against the base, a file may be gone that is renamed against HEAD.
    changed = {entry[end] for entry in entries for end in ("path", "from") if end in entry}
    for file in files:
        path = os.fsdecode(file.path)
        file.uncommitted = path in changed or path in conflicts
        if path in conflicts:
            file.change, file.conflict = Change.CONFLICTED, Conflict.of(conflicts[path])


@dataclass(slots=True)
class _WorkspaceHunkReader(HunkReader):
    """Reads the hunks of files of the working tree, also of those that git does not know yet."""

    root: Path = field(kw_only=True)

    def hunks_of(self, file: ChangedFile) -> dict[str, Any]:
        """Return the hunks of a file; of one in conflict, those to the branch's own side."""
        if file.is_untracked:
            return self._read_new(file)
        if file.change is not Change.CONFLICTED:
            return self.compare(self.revisions, [file.path, *filter(None, [file.old_path])])
        if file.conflict in _WITHOUT_OURS:  # as the other side has it, if git has left it there
            return self._read_new(file)
        # Compared with our side, so that the markers of the conflict are what has been added.
        return self.compare(["--ours"], [file.path])

    def _read_new(self, file: ChangedFile) -> dict[str, Any]:
        data = _new_content(self.root, file)
        if data is None or b"\0" in data[:_BINARY_HEAD]:
            return {}
        limit = branch_changes.PATCH_LIMIT
        self.room -= len(data)
        return branch_changes.added_hunks(data[:limit], truncated=len(data) > limit)


class _Contents:
    """Looks at the files of the workspace: ids of uncommitted contents, and sizes where git counts no lines."""

    def __init__(self, git: WorkspaceGit, tree: str):
        self._git, self._root = git, git.root
        self._algorithm = "sha1" if len(tree) == _SHA1_LENGTH else "sha256"
        self._room = _HASHED

    def fill_in(self, files: Sequence[ChangedFile]) -> None:
        """Complete files that git has listed."""
        self.fill_in_ids(files)
        shown = files[: branch_changes.MAX_FILES]
        uncounted = [file for file in shown if not file.is_counted and file.content is not Content.SUBMODULE]
        sizes = self._blob_sizes([file.old_id for file in uncounted if file.old_id])
        for file in uncounted:
            old, new = sizes.get(file.old_id), self._size(file.path)
            branch_changes.mark_uncounted(file, max((size for size in (old, new) if size is not None), default=None))
            file.size = old if file.change is Change.DELETED else new

    def fill_in_ids(self, files: Sequence[ChangedFile]) -> None:
        """Find out the ids of contents that git has not stored."""
        for file in files[: branch_changes.MAX_FILES]:
            if file.change is not Change.DELETED and not file.new_id and file.content is not Content.SUBMODULE:
                file.new_id = self._id_of(file)

    def add_new_files(self, files: list[ChangedFile], untracked: Sequence[str]) -> int:
        """Add the files that git does not know yet; return how many more than are listed there are."""
        known = {file.path for file in files}
        for name in untracked[: branch_changes.MAX_FILES]:
            path = os.fsencode(name)
            if path not in known:  # else it was removed from the index alone
                files.append(self._new_file(path))
        return max(0, len(untracked) - branch_changes.MAX_FILES)

    def _new_file(self, path: bytes) -> ChangedFile:
        file = ChangedFile(path, Change.ADDED, uncommitted=True, is_untracked=True)
        if path.endswith(b"/"):
            file.content = Content.REPOSITORY
            return file
        about = self._about(path)
        if about is None:
            branch_changes.mark_uncounted(file, None)
            return file
        file.new_mode = "100755" if about.st_mode & 0o100 else "100644"
        if stat.S_ISLNK(about.st_mode):
            file.content, file.new_mode, file.additions, file.deletions = Content.SYMLINK, _SYMLINK, 1, 0
        file.new_id = self._id_of(file)
        if file.content is Content.TEXT:
            self._count_lines(file, about.st_size)
        return file

    def _count_lines(self, file: ChangedFile, size: int) -> None:
        data = _read(self._root, file.path, branch_changes.LARGE_FILE + 1)
        if data is None or len(data) > branch_changes.LARGE_FILE or b"\0" in data[:_BINARY_HEAD]:
            branch_changes.mark_uncounted(file, size)
            return
        file.additions, file.deletions = data.count(b"\n"), 0
        if data and not data.endswith(b"\n"):
            file.additions += 1

    def _id_of(self, file: ChangedFile) -> str:
        """Return git's id of a file's content, unless a filter changes it; empty if it is not known."""
        if file.new_mode == _SYMLINK:
            data = _read_link(self._root, file.path)
        else:
            data = _read_whole(self._root, file.path, min(_HASHED_FILE, self._room))
        if data is None:
            return ""
        self._room -= len(data)
        found = hashlib.new(self._algorithm, b"blob %d\0" % len(data), usedforsecurity=False)
        found.update(data)
        return found.hexdigest()

    def _blob_sizes(self, ids: Sequence[str]) -> dict[str, int]:
        if not ids:
            return {}
        wanted = "".join(f"{each}\n" for each in dict.fromkeys(ids)).encode()
        return branch_changes.parse_sizes(self._git.run("cat-file", branch_changes.SIZE_FORMAT, stdin=wanted).data)

    def _size(self, path: bytes) -> int | None:
        about = self._about(path)
        if about is None:
            return None
        return about.st_size

    def _about(self, path: bytes) -> os.stat_result | None:
        with _folder_of(self._root, path) as (folder, name):
            if folder is not None:
                with suppress(OSError):
                    return os.lstat(name, dir_fd=folder)
        return None


def _new_content(root: Path, file: ChangedFile) -> bytes | None:
    """Return the beginning of a file that git does not know yet, or where a link leads."""
    if file.new_mode == _SYMLINK:
        return _read_link(root, file.path)
    return _read(root, file.path, branch_changes.PATCH_LIMIT + 1)


def _read(root: Path, path: bytes, limit: int) -> bytes | None:
    with _opened(root, path) as file:
        return None if file is None else file.read(limit)


def _read_whole(root: Path, path: bytes, limit: int) -> bytes | None:
    """Return the content of a file; None, without reading it, if it has more than ``limit`` bytes."""
    with _opened(root, path) as file:
        if file is None or os.fstat(file.fileno()).st_size > limit:
            return None
        data = file.read(limit + 1)
    if len(data) > limit:
        return None
    return data


@contextmanager
def _opened(root: Path, path: bytes) -> Iterator[IO[bytes] | None]:
    """Yield a plain file inside the workspace, opened; None for anything else."""
    with ExitStack() as stack:
        file = None
        folder, name = stack.enter_context(_folder_of(root, path))
        if folder is not None:
            with suppress(OSError):
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
                file = stack.enter_context(os.fdopen(descriptor, "rb"))
        yield file if file and stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None


def _read_link(root: Path, path: bytes) -> bytes | None:
    with _folder_of(root, path) as (folder, name):
        if folder is not None:
            with suppress(OSError):
                return os.readlink(name, dir_fd=folder)
    return None


@contextmanager
def _folder_of(root: Path, path: bytes) -> Iterator[tuple[int | None, bytes]]:
    """Yield the opened directory of a file inside the workspace, None if there is none, and the file's name in it."""
    folder, _, name = path.rpartition(b"/")
    with ExitStack() as stack:
        descriptor = None
        with suppress(ApiError, OSError):
            descriptor = stack.enter_context(open_path(root, os.fsdecode(folder), os.O_DIRECTORY))
        yield descriptor, name
