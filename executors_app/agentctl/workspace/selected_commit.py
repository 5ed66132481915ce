"""Commit selected files of a workspace, exactly as they were shown.

Each uncommitted change has a version: what the last commit has in its place, and the blob that git would store. The
commit is written from these blobs, on copies of the index, so that neither the index nor a branch changes before the
commit exists. No hook, signing program or editor runs; a filter runs with the agent's rights, as for every status and
diff, because without it the content would be another one. All calls block.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.workspace.changes import author_environment
from executors_app.agentctl.workspace.status_format import STATUS, parse_git_status
from executors_app.machine.git import git_directory
from executors_app.machine.git.branch_changes import EMPTY_TREES
from executors_app.machine.git.git_directory import BRANCH_PREFIX
from executors_app.machine.git.workspace_git import GitError, WorkspaceGit
from executors_app.wire.protocol import ApiError, Code, validation_error

logger = logging.getLogger(__name__)

MAX_SELECTED: Final = 2000
"""Changes that are listed, and that one commit can have."""
_LIST_LIMIT: Final = 64 << 20
_HASHED_FILE: Final = 8 << 20
_HASHED: Final = 64 << 20
"""Bytes of content that one list reads; the version of larger files is that of their size and times."""
_MAX_ADDS: Final = 100
"""Attempts to add files of which git refuses some."""
_MAX_NAMED: Final = 10
"""Paths that a refusal names."""
_MAX_PROBLEM: Final = 200
_SECONDS: Final = 60.0
_EXACT: Final = "surrogateescape"
_EVERY_FILE: Final = ("-c", "core.sparseCheckout=false")
_ADD: Final = ("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul")
_UNUSED_OBJECTS: Final = ("-c", "core.fsync=none", "-c", "core.compression=0")
_NO_OBJECT: Final = "0"
_UNMERGED: Final = b"U"
_NO_MODE: Final = "000000"


class Content(StrEnum):
    """Which content of a file is committed; a partly staged file has both."""

    STAGED = "staged"
    FILE = "file"
    """The file as it is, whatever is staged of it."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A change that was selected, as it was shown."""

    path: str
    content: str
    version: str


@dataclass(frozen=True, slots=True)
class _Entries:
    """A path in the last commit, and in an index: mode and id; empty for none."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class _Change:
    """One uncommitted change; paths are exact, as with ``surrogateescape``."""

    path: str
    content: Content
    change: str
    source: str = ""
    """The old path of a file that was renamed."""

    @property
    def name(self) -> str:
        """The path without the slash that marks a repository inside the workspace."""
        return self.path.rstrip("/")

    @property
    def shown_path(self) -> str:
        """The path as people see it."""
        return _readable(self.path)


@dataclass(frozen=True, slots=True)
class _Found:
    """A change with what would be committed of it, or why it cannot be."""

    change: _Change
    version: str
    entry: str | None
    """Mode and id; empty for no file; None if it was not read."""
    problem: str = ""


@dataclass(slots=True)
class _State:
    """The uncommitted changes of a workspace at one moment."""

    head: str
    ref: str
    """The full name of the branch that is checked out; HEAD if none is."""
    branch: str
    conflicted: Sequence[str]
    operation: str
    changes: Sequence[_Change]
    truncated: bool
    staged: Mapping[str, _Entries] = field(default_factory=dict)
    listing: bytes = b""
    """The index, as ``git ls-files --stage -z`` lists it."""


def list_selectable(git: WorkspaceGit) -> dict[str, Any]:
    """Return ``{branch, head, operation, conflicts, files: [{path, old_path, content, change, version, problem}]}``.

    ``truncated`` if there are more. Nothing is stored in the repository. Raises ApiError.
    """
    state = _read_state(git)
    with _scratch() as folder:
        found = _find_changes(git, state, folder, lambda change: True, keep=False)
    return {
        "branch": _readable(state.branch) or None,
        "head": state.head or None,
        "operation": state.operation or None,
        "conflicts": len(state.conflicted),
        "files": [_to_json(each) for each in found],
        "truncated": state.truncated,
    }


def commit_selected(
    git: WorkspaceGit, message: str, author: tuple[str, str] | None, selected: Sequence[Selected]
) -> dict[str, Any]:
    """Commit exactly these changes, and return ``{commit, branch, subject}``; everything else stays as it is.

    Raises ApiError: ``file_changed`` if one is no longer what was shown, and then nothing has changed.
    """
    text = _clean_message(message)
    if not 1 <= len(selected) <= MAX_SELECTED:
        raise validation_error(f"select between 1 and {MAX_SELECTED} files", field="files")
    identity = author_environment(git, author)
    state = _read_state(git)
    if state.conflicted:
        raise ApiError(Code.CONFLICT, "a merge is unfinished: resolve its conflicts first")
    if state.operation:
        raise ApiError(Code.CONFLICT, f"git is in the middle of a {state.operation}: commit all files at once")
    paths = {each.path for each in selected}
    with _scratch() as folder:
        found = _find_changes(git, state, folder, lambda change: change.shown_path in paths, keep=True)
        wanted = _wanted_entries(state, _matching(found, selected))
        tree = _write_tree(git, state, folder, wanted)
    parents = ["-p", state.head] if state.head else []
    arguments = ("-c", "i18n.commitEncoding=UTF-8", "commit-tree", tree, *parents, "-F", "-")
    made = git.text(*arguments, stdin=text.encode(), environment=identity)
    subject = text.partition("\n")[0]
    _publish(git, state, wanted, made, subject)
    return {"commit": made, "branch": _readable(state.branch) or None, "subject": subject}


def parse_selected(body: Mapping[str, Any]) -> list[Selected]:
    """Return the changes that a request selects; raises ApiError."""
    files = body.get("files")
    if not isinstance(files, list) or not 1 <= len(files) <= MAX_SELECTED:
        raise validation_error(f"files must be a list of 1 to {MAX_SELECTED} files", field="files")
    return [_parse_one(each) for each in files]


def _parse_one(given: Any) -> Selected:
    names = ("path", "content", "version")
    values = [given.get(name) for name in names] if isinstance(given, dict) else []
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) != len(names) or texts[1] not in set(Content):
        raise validation_error("each file has a path, a content (staged or file) and a version", field="files")
    return Selected(*texts)


# --- what there is ---


def _read_state(git: WorkspaceGit) -> _State:
    output = git.compare(*STATUS, limit=_LIST_LIMIT)
    status = parse_git_status(output.fields, errors=_EXACT)
    changes = [
        *(_Change(each["path"], Content.STAGED, each["change"], each.get("from", "")) for each in status["staged"]),
        *(_Change(each["path"], Content.FILE, each["change"], each.get("from", "")) for each in status["unstaged"]),
        *(_Change(path, Content.FILE, "added") for path in status["untracked"]),
    ]
    own = git_directory.git_directory_of(git.root)
    return _State(
        head=status["head"] or "",
        ref=_checked_out_ref(git),
        branch=status["branch"] or "",
        conflicted=status["conflicted"],
        operation=git_directory.operation_in_progress(own) if own is not None else "",
        changes=changes[:MAX_SELECTED],
        truncated=output.truncated or len(changes) > MAX_SELECTED,
    )


def _checked_out_ref(git: WorkspaceGit) -> str:
    """Return the full name of the branch that is checked out; HEAD if none is."""
    own = git_directory.git_directory_of(git.root)
    branch = git_directory.read_head(own).branch if own is not None else ""
    return f"{BRANCH_PREFIX}{branch}" if branch else "HEAD"


def _find_changes(
    git: WorkspaceGit, state: _State, folder: Path, is_wanted: Callable[[_Change], bool], *, keep: bool
) -> list[_Found]:
    """Return what would be committed of each change; ``keep`` stores the content of files in the repository."""
    state.listing = _list_index(git)
    state.staged = _compare_index(git, state.head, {})
    changes = [change for change in state.changes if is_wanted(change)]
    files = [change for change in changes if change.content is Content.FILE]
    # Of all changes, so that a file has the same kind of version in a list and in a commit.
    stats = _large_files(git.root, state.changes)
    added = [change for change in files if keep or change.path not in stats]
    problems: dict[str, str] = {}
    entries: Mapping[str, _Entries] = {}
    if added:
        environment = {"GIT_INDEX_FILE": str(folder / "added")}
        git.run("update-index", "-z", "--index-info", stdin=state.listing, environment=environment)
        problems = _add(git, added, environment | ({} if keep else _unused_objects(git, folder)), keep=keep)
        entries = _compare_index(git, state.head, environment)
    if keep:  # what was written while git read a large file shows in its times
        now = _large_files(git.root, state.changes)
        stats = {path: about if now.get(path) == about else f"{about} changed" for path, about in stats.items()}
    return [_found(change, state.staged, entries, stats, problems) for change in changes]


def _found(
    change: _Change,
    staged: Mapping[str, _Entries],
    added: Mapping[str, _Entries],
    stats: Mapping[str, str],
    problems: Mapping[str, str],
) -> _Found:
    path = change.name
    in_index = staged.get(path, _Entries("", ""))
    if change.content is Content.STAGED:
        if path not in staged:
            return _Found(change, "", None, "It is no longer staged.")
        return _Found(change, _version(change, in_index.before, in_index.after), in_index.after)
    if problem := problems.get(change.path, ""):
        return _Found(change, "", None, problem)
    # A file that is that of the last commit again, although something else is staged.
    entries = added.get(path, _Entries(in_index.before, in_index.before))
    if about := stats.get(change.path):
        entry = added[path].after if path in added else None
        return _Found(change, _version(change, in_index.before, in_index.after, about), entry)
    if path not in added and path not in staged:
        return _Found(change, "", None, "git stores no change of it.")
    return _Found(change, _version(change, entries.before, entries.after, in_index.after), entries.after)


def _version(change: _Change, *parts: str) -> str:
    """Return a name of exactly this change."""
    text = "\0".join((change.content, change.path, change.source, *parts))
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:40]


def _to_json(found: _Found) -> dict[str, Any]:
    return {
        "path": found.change.shown_path,
        "old_path": _readable(found.change.source),
        "content": found.change.content.value,
        "change": found.change.change,
        "version": found.version,
        "problem": found.problem,
    }


def _large_files(root: Path, changes: Sequence[_Change]) -> dict[str, str]:
    """Return what names the state of files that are too large to be read for a list."""
    room, found = _HASHED, {}
    for change in changes:
        if change.content is not Content.FILE:
            continue
        try:
            about = (root / change.name).lstat()
        except OSError:
            continue
        if about.st_size > min(_HASHED_FILE, room):
            times = f"{about.st_mtime_ns} {about.st_ctime_ns}"
            found[change.path] = f"{about.st_size} {times} {about.st_mode:o} {about.st_ino}"
        else:
            room -= about.st_size
    return found


def _list_index(git: WorkspaceGit) -> bytes:
    output = git.run(*_EVERY_FILE, "ls-files", "-z", "--stage", limit=_LIST_LIMIT)
    if output.truncated:
        raise ApiError(Code.CONFLICT, "the repository has too many files: commit them in the terminal")
    return output.data


def _compare_index(git: WorkspaceGit, head: str, environment: Mapping[str, str]) -> dict[str, _Entries]:
    """Return how an index differs from the last commit."""
    options = ("--cached", "--raw", "-z", "--no-renames", "--no-abbrev", "--ignore-submodules=dirty")
    tree = head or _empty_tree(git)
    fields = git.run("diff-index", *options, tree, "--", environment=environment, limit=_LIST_LIMIT).fields
    found = {}
    for about, path in zip(fields[::2], fields[1::2], strict=False):
        modes = about[1:].decode("ascii", "replace").split(" ")
        if not about.endswith(_UNMERGED):
            found[os.fsdecode(path)] = _Entries(_entry(modes[0], modes[2]), _entry(modes[1], modes[3]))
    return found


def _entry(mode: str, blob: str) -> str:
    if mode == _NO_MODE:
        return ""
    return f"{mode} {blob}"


def _empty_tree(git: WorkspaceGit) -> str:
    return EMPTY_TREES[len(git.text("hash-object", "-t", "blob", "--stdin"))]


def _unused_objects(git: WorkspaceGit, folder: Path) -> dict[str, str]:
    """Return variables with which git writes objects where they are removed with ``folder``."""
    place = folder / "objects"
    place.mkdir()
    place.chmod(0o777)
    known = (git.root / git.text("rev-parse", "--git-path", "objects")).resolve()
    quoted = str(known).replace("\\", "\\\\").replace('"', '\\"')
    return {"GIT_OBJECT_DIRECTORY": str(place), "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'}


def _add(
    git: WorkspaceGit, changes: Sequence[_Change], environment: Mapping[str, str], *, keep: bool
) -> dict[str, str]:
    """Let an index have files as they are, and return those that git refuses, with its reasons."""
    refused: dict[str, str] = {}
    options = () if keep else _UNUSED_OBJECTS
    waiting = [[change.path for change in changes]]
    attempts = 0
    while waiting:
        paths = waiting.pop()
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        attempts += 1
        try:
            arguments = (*_EVERY_FILE, *options, "--literal-pathspecs", *_ADD)
            git.run(*arguments, stdin=names, environment=environment, timeout=_SECONDS)
        except GitError as error:
            if error.exit_code is None or attempts >= _MAX_ADDS:
                raise
            if len(paths) == 1:
                refused[paths[0]] = error.message[:_MAX_PROBLEM]
            else:
                middle = len(paths) // 2
                waiting += [paths[:middle], paths[middle:]]
    return refused


# --- what is committed ---


def _matching(found: Sequence[_Found], selected: Sequence[Selected]) -> list[_Found]:
    """Return the selected changes; raises ApiError, with their names, if some are no longer what was shown."""
    present = {(each.change.shown_path, each.change.content.value, each.version): each for each in found}
    problems = {(each.change.shown_path, each.change.content.value): each.problem for each in found}
    matching, changed = [], []
    for each in selected:
        match = present.get((each.path, each.content, each.version)) if each.version else None
        if match is not None and match.entry is not None:
            matching.append(match)
        elif problem := problems.get((each.path, each.content)):
            raise ApiError(Code.CONFLICT, f"{each.path} cannot be committed: {problem}")
        elif (each.path, each.content) in problems:
            changed.append(f"{each.path} (changed)")
        else:
            changed.append(f"{each.path} (no longer {'staged' if each.content == Content.STAGED else 'changed'})")
    if changed:
        raise _changed(changed)
    return matching


def _changed(names: Sequence[str]) -> ApiError:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    listed = ", ".join(name[-_MAX_PROBLEM:] for name in names[:_MAX_NAMED]) + more
    return ApiError(Code.FILE_CHANGED, f"since they were shown, files have changed, so nothing was committed: {listed}")


def _wanted_entries(state: _State, chosen: Sequence[_Found]) -> dict[str, str]:
    """Return what the commit has at each path that it changes: mode and id, empty for none."""
    wanted: dict[str, str] = {}
    # What a file is counts more than what is staged of it.
    for each in sorted(chosen, key=lambda found: found.change.content is Content.FILE):
        assert each.entry is not None, "otherwise it does not match"  # noqa: S101
        wanted[each.change.name] = each.entry
    renamed = {change.name: change.source for change in state.changes if change.change == "renamed" and change.source}
    for path in list(wanted):
        if path in renamed and wanted[path]:
            wanted.setdefault(renamed[path], "")
    return wanted


def _write_tree(git: WorkspaceGit, state: _State, folder: Path, wanted: Mapping[str, str]) -> str:
    """Return the tree of the last commit with these entries; raises ApiError if other files would change, too."""
    environment = {"GIT_INDEX_FILE": str(folder / "committed")}
    git.run("read-tree", state.head or "--empty", environment=environment)
    git.run("update-index", "-z", "--index-info", stdin=_index_lines(git, wanted), environment=environment)
    changed = _compare_index(git, state.head, environment)
    if not changed:
        raise ApiError(Code.CONFLICT, "there is nothing to commit: these files are those of the last commit")
    # No index has a file where it has a directory, so git would drop what is in the way.
    others = changed.keys() - wanted.keys()
    others |= {path for path in state.staged.keys() - wanted.keys() if _is_in_the_way(state.staged[path], path, wanted)}
    if others:
        named = ", ".join(sorted(map(_readable, others))[:_MAX_NAMED])
        message = f"a directory has become a file, or a file a directory: select these files, too: {named}"
        raise ApiError(Code.CONFLICT, message)
    return git.text("write-tree", environment=environment)


def _is_in_the_way(entries: _Entries, path: str, wanted: Mapping[str, str]) -> bool:
    """Whether the index has a file that cannot be beside one that is wanted."""
    if not entries.after:
        return False
    folders = {path[:end] for end, letter in enumerate(path) if letter == "/"}
    return any(wanted.get(folder) for folder in folders) or any(
        entry and other.startswith(f"{path}/") for other, entry in wanted.items()
    )


def _publish(git: WorkspaceGit, state: _State, wanted: Mapping[str, str], made: str, subject: str) -> None:
    """Let the index have what was committed, then the branch the commit; raises ApiError, and then neither has.

    In this order, so that a kill between both leaves these files staged and nothing committed: with the branch first,
    the index would undo the commit.
    """
    if _checked_out_ref(git) != state.ref:
        raise ApiError(Code.FILE_CHANGED, "another branch is checked out than was shown, so nothing was committed")
    known, now = (_parse_listing(listing) for listing in (state.listing, _list_index(git)))
    if moved := [f"{_readable(path)} (changed)" for path in wanted if known.get(path) != now.get(path)]:
        raise _changed(moved)
    updates = {path: entry for path, entry in wanted.items() if now.get(path, "") != entry}
    if updates:
        _write_index(git, updates)
    old = state.head or _NO_OBJECT * len(made)
    try:
        # The branch by its own name: HEAD could lead to another one by now, as could a symbolic branch.
        # The subject is no argument of its own, because the first one names the ref whose lock is held meanwhile.
        git.run("update-ref", "--no-deref", f"-mcommit: {subject}", state.ref, made, old, all_settings=True)
    except GitError as error:
        head = _resolve(git, state.ref)
        if head == made:  # a git that was killed after it had moved the branch
            return
        # Except for files that somebody else has committed meanwhile, as they are in the index.
        differing = _compare_index(git, head, {})
        if restored := {path: now.get(path, "") for path in updates if path in differing}:
            _write_index(git, restored)
        if head == state.head:
            raise
        message = "the branch has other commits than were shown, so nothing was committed"
        raise ApiError(Code.FILE_CHANGED, message) from error


def _resolve(git: WorkspaceGit, ref: str) -> str:
    return git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", good=(0, 1, 128)).text


def _parse_listing(listing: bytes) -> dict[str, str]:
    """Return mode and id of each path in the index."""
    found = {}
    for line in listing.split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, blob, _ = about.decode("ascii", "replace").split(" ")
        found[os.fsdecode(path)] = f"{mode} {blob}"
    return found


def _write_index(git: WorkspaceGit, wanted: Mapping[str, str]) -> None:
    """Let the index have these entries; all others stay. git replaces the index as a whole, or not at all."""
    git.run("update-index", "-z", "--index-info", stdin=_index_lines(git, wanted), all_settings=True)


def _index_lines(git: WorkspaceGit, wanted: Mapping[str, str]) -> bytes:
    length = len(git.text("hash-object", "-t", "blob", "--stdin"))
    removed = [b"0 %s\t%s\0" % ((_NO_OBJECT * length).encode(), os.fsencode(path)) for path in wanted]
    made = [entry.encode() + b"\t" + os.fsencode(path) + b"\0" for path, entry in wanted.items() if entry]
    return b"".join(removed + made)


def _clean_message(message: str) -> str:
    """Return a message as git cleans it: without spaces at line ends, and without empty lines around it."""
    lines = [line.rstrip() for line in message.replace("\r\n", "\n").split("\n")]
    kept = [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]
    text = "\n".join(kept).strip("\n")
    if not text:
        raise validation_error("the commit message is empty", field="message")
    return f"{text}\n"


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a directory in which git, possibly as another user, can write."""
    with tempfile.TemporaryDirectory(prefix="agentctl-commit-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def _readable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
