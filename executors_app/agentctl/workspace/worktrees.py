"""Worktrees: one per session, on a branch of its own; both follow from the session's id. And seeds of workspaces.

Every call may be repeated after a crash at any point. The only thing ever deleted is an unfinished ``git worktree
add``: git marks it as locked with the reason *initializing*, and no agent has run in it. ``git worktree prune`` is
never used, because it would also remove worktrees of people whose disk is not mounted at the moment.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Protocol

import orjson

from executors_app.agentctl.workspace import recovery_snapshots
from executors_app.agentctl.workspace.repository_git import (
    RepositoryGitFailed,
    common_directory,
    resolve_commit,
    run_git,
)
from executors_app.domain import WorkspaceState
from executors_app.errors import RepositoryUnusable, WorkspaceGone

_INITIALIZING: Final = "initializing"
_LOCK_SECONDS: Final = 120.0
_LOCK_POLL: Final = 0.01
_HALF_A_RECORD: Final = re.compile(r"failed to read .+/commondir")
"""What git reports while another ``git worktree add`` in the same repository is writing its record."""
_ATTEMPTS: Final = 20
_PAUSE: Final = 0.05
"""Seconds between two attempts."""

SEED_VERSION: Final = 1
_MAX_LINE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Seed:
    """The first line of a seed file, which has everything that a sandbox needs to create the workspace of a session.

    One line of JSON, then the bytes of a git pack, which may be empty. The control plane writes it; agentctl reads it
    and creates the workspace with the agent's rights, because the repository belongs to the agent from then on.
    """

    branch: str
    """The workspace's own branch, ``kandev/...``."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Commit by full ref name."""
    objects: tuple[str, ...] = ()
    """Read-only object directories, as the sandbox sees them, that the repository borrows from."""
    complete: bool = False
    """Refs, pack and borrowed objects suffice to create the repository from scratch."""
    object_format: str = "sha1"
    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email`` of commits; either may be missing."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The team's hooks by name. They run in the sandbox only."""
    repository: str = ""
    """Path of a repository outside: the workspace is a linked worktree of it, without isolation.

    If set, of the other fields only ``branch``, ``base`` and ``existed`` are used.
    """
    base: str = ""
    """Linked worktree: the branch or commit that a new branch starts from; empty: HEAD."""
    existed: bool = False
    """Linked worktree: it was complete once, so a new branch would silently lose work."""

    def to_line(self) -> bytes:
        """Encode the first line of the file, with its line end."""
        line: dict[str, Any] = {
            "version": SEED_VERSION,
            **{name: getattr(self, name) for name in (*_OWN_FIELDS, *(_LINKED_FIELDS if self.repository else ()))},
            "objects": list(self.objects),
            "hooks": {name: base64.b64encode(text).decode("ascii") for name, text in self.hooks.items()},
        }
        return orjson.dumps(line) + b"\n"


_OWN_FIELDS: Final = ("branch", "refs", "complete", "object_format", "identity", "remotes", "exclude")
_LINKED_FIELDS: Final = ("repository", "base", "existed")


def read_seed(file: IO[bytes]) -> Seed:
    """Read the first line and leave the file at the first byte of the pack. Raises ValueError."""
    try:
        line = orjson.loads(file.readline(_MAX_LINE_BYTES))
        if line["version"] != SEED_VERSION:
            raise ValueError(f"The seed has version {line['version']}; this agentctl reads version {SEED_VERSION}.")
        plain = {name: line[name] for name in (*_OWN_FIELDS, *_LINKED_FIELDS) if name in line}
        hooks = {name: base64.b64decode(text, validate=True) for name, text in line.get("hooks", {}).items()}
        return Seed(**plain, objects=tuple(line.get("objects", ())), hooks=hooks)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The seed of the workspace cannot be read: {error}") from error


def write_seed(seed: Seed, into: Path) -> None:
    """Write a seed without a pack, atomically even with concurrent writers. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=into.parent, prefix=f".{into.name}.", delete=False) as draft:
        try:
            draft.write(seed.to_line())
            draft.flush()
            Path(draft.name).replace(into)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise


class CommitLookup(Protocol):
    """The queries on a repository that decide about the state of a worktree."""

    @property
    def common(self) -> Path:
        """The directory that its worktrees share."""
        ...

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a branch, tag or id names; None if it names none."""
        ...


@dataclass(frozen=True, slots=True)
class OwnedRepository:
    """A repository of the calling user, so its configuration may be applied."""

    path: Path
    common: Path

    @classmethod
    def open(cls, path: Path) -> OwnedRepository:
        """Open a repository; raises RepositoryUnusable, RepositoryGitFailed."""
        return cls(path, common_directory(path))

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a branch, tag or id names; None if it names none."""
        return resolve_commit(self.path, revision)


@dataclass(frozen=True, slots=True)
class Worktree:
    """The path and branch of a worktree."""

    path: Path
    branch: str


def session_worktree(data_directory: Path, session_id: str) -> Worktree:
    """Return the path and branch that belong to a session."""
    return Worktree(data_directory / "worktrees" / session_id, f"kandev/{session_id.replace('-', '')[:12]}")


def make_worktree(repository: Path, base: str, worktree: Worktree, *, existed: bool) -> None:
    """Create the worktree, rebuild it, or find it complete.

    ``existed``: it was complete once, so a new branch from ``base`` (empty: HEAD) would silently lose work.
    Raises WorkspaceGone (with the reason), RepositoryUnusable, RepositoryGitFailed.
    """
    if _is_present(worktree.path):
        return
    worktree.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    common = common_directory(repository)
    with worktree_lock(worktree.path) as held:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _make_locked(repository, common, base, worktree, held, existed=existed)
            except RepositoryGitFailed as error:
                if attempt == _ATTEMPTS or not _HALF_A_RECORD.search(error.message):
                    raise
                time.sleep(_PAUSE)
            else:
                return


def _make_locked(repository: Path, common: Path, base: str, worktree: Worktree, held: int, *, existed: bool) -> None:
    """Do what ``make_worktree`` does, while its lock is held; after an error, it may be called again."""
    if _is_present(worktree.path):
        return  # created by another process while we waited for the lock
    record = _find_record(common, worktree.path)
    if record and _is_unfinished(record):
        shutil.rmtree(worktree.path, ignore_errors=True)
        shutil.rmtree(record)
        record = None
    if record and _names_commit(record, partial(resolve_commit, repository)):
        _restore_directory(repository, record, worktree.path, held)
    else:
        _add_worktree(repository, base, worktree, held, existed=existed)


def worktree_state(worktree: Worktree, open_repository: Callable[[], CommitLookup]) -> tuple[WorkspaceState, str]:
    """Return whether the worktree exists or can be rebuilt, and the reason if not; changes nothing.

    ``open_repository`` may raise RepositoryUnusable. Temporary errors are raised.
    """
    if _is_present(worktree.path):
        return WorkspaceState.PRESENT, ""
    try:
        repository = open_repository()
        record = _find_record(repository.common, worktree.path)
        if record and (_is_unfinished(record) or _names_commit(record, repository.commit_of)):
            return WorkspaceState.REBUILDABLE, ""
        if _is_occupied(worktree.path):
            return WorkspaceState.GONE, f"The directory {worktree.path} is no longer a worktree of its repository."
        if repository.commit_of(f"refs/heads/{worktree.branch}"):
            return WorkspaceState.REBUILDABLE, ""
    except RepositoryUnusable as error:
        if not error.permanent:
            raise
        return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and {_lowercase_first(error.message)}"
    return WorkspaceState.GONE, f"The worktree {worktree.path} and its branch {worktree.branch} were deleted."


def _add_worktree(repository: Path, base: str, worktree: Worktree, held: int, *, existed: bool) -> None:
    """Run ``git worktree add``; ``--force`` replaces a stale record of this path that has no usable HEAD."""
    if _is_occupied(worktree.path):
        raise WorkspaceGone(f"The directory {worktree.path} is no longer a worktree of {repository}.")
    force = ("--force", "--force") if _find_record(common_directory(repository), worktree.path) else ()
    head = resolve_commit(repository, f"refs/heads/{worktree.branch}")
    if head is None and existed:
        raise WorkspaceGone(f"The worktree {worktree.path} and its branch {worktree.branch} were deleted.")
    if head is None:
        target = ["--no-track", "-b", worktree.branch, str(worktree.path), resolve_start_commit(repository, base)]
        run_git(repository, "worktree", "add", *force, *target, timeout=600, hold=(held,))
        return
    recovery = recovery_snapshots.find_uncommitted_work(repository, worktree.path.name, head)
    # Marked as unfinished, the way git does it, until the uncommitted work is restored too.
    unfinished = ("--lock", "--reason", _INITIALIZING) if recovery else ()
    target = [str(worktree.path), worktree.branch]
    run_git(repository, "worktree", "add", *force, *unfinished, *target, timeout=600, hold=(held,))
    if recovery:
        recovery_snapshots.restore_uncommitted_work(worktree.path, recovery, held)
        run_git(repository, "worktree", "unlock", str(worktree.path), hold=(held,))


def resolve_start_commit(repository: Path, base: str) -> str:
    """Return the commit that a new branch starts from; raises RepositoryUnusable."""
    for revision in (base, f"origin/{base}") if base else ("HEAD",):
        if commit := resolve_commit(repository, revision):
            return commit
    raise RepositoryUnusable(f"The repository {repository} has no commit at {base or 'HEAD'!r} to start from.")


def _restore_directory(repository: Path, record: Path, path: Path, held: int) -> None:
    """Restore a deleted directory from the record that git still has: HEAD, and the index with all staged work.

    Unstaged work comes from the last snapshot. If only the pointer to the record (``.git``) is missing, nothing else is
    changed.
    """
    if _is_occupied(path):
        pointer = path.with_name(f".{path.name}.pointer")
        pointer.write_text(f"gitdir: {record}\n")
        pointer.rename(path / ".git")
        return
    temporary = path.with_name(f".{path.name}.draft")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    bare = ("--git-dir", str(record), "--work-tree", str(temporary))
    if not (record / "index").exists():
        run_git(temporary, *bare, "read-tree", "HEAD", hold=(held,))
    run_git(temporary, *bare, "checkout-index", "--all", "--quiet", timeout=600, hold=(held,))
    if recovery := recovery_snapshots.find_uncommitted_work(
        repository, path.name, run_git(temporary, *bare, "rev-parse", "HEAD")
    ):
        recovery_snapshots.overlay_uncommitted_work(temporary, bare, recovery, held)
    # Pointer and rename come last: a crash before them leaves only a draft, which the next call deletes.
    (temporary / ".git").write_text(f"gitdir: {record}\n")
    temporary.rename(path)


def _is_present(path: Path) -> bool:
    """Whether a complete worktree exists; reads two small files and runs no git."""
    try:
        if not (path / ".git").is_file():  # reading a named pipe would block forever
            return False
        pointer = (path / ".git").read_text()
    except (OSError, ValueError):
        return False
    record = Path(pointer.removeprefix("gitdir:").strip())
    return (record / "HEAD").is_file() and not _is_unfinished(record)


def _is_unfinished(record: Path) -> bool:
    try:
        return (record / "locked").is_file() and (record / "locked").read_text().strip() == _INITIALIZING
    except (OSError, ValueError):
        return False


def _names_commit(record: Path, commit_of: Callable[[str], str | None]) -> bool:
    """Whether the record's HEAD still names an existing commit."""
    try:
        head = (record / "HEAD").read_text().strip() if (record / "HEAD").is_file() else ""
    except (OSError, ValueError):
        return False
    return commit_of(head.removeprefix("ref:").strip()) is not None


def _find_record(common: Path, path: Path) -> Path | None:
    """Find git's record of the worktree at ``path``; git usually names it after the directory."""
    records = common / "worktrees"
    wanted = (path.parent.resolve() / path.name) / ".git"
    try:
        names = sorted(os.listdir(records), key=lambda name: name != path.name)  # noqa: PTH208  (names, not paths)
    except OSError:
        return None
    for name in names:
        try:
            if not (records / name / "gitdir").is_file():
                continue
            pointer = (records / name / "gitdir").read_text().strip()
        except (OSError, ValueError):
            continue
        if Path(pointer) in (wanted, path / ".git"):
            return records / name
    return None


def _is_occupied(path: Path) -> bool:
    """Whether something exists at the worktree's path that must not be deleted."""
    try:
        return any(path.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


@contextmanager
def worktree_lock(path: Path) -> Iterator[int]:
    """Hold the lock for ``path`` while something is created there; yield its file descriptor.

    Pass the descriptor to git as ``hold``: git then keeps the lock if the process that took it is killed. Raises
    RepositoryGitFailed if another process keeps the lock for two minutes.
    """
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not wait_for_lock(lock, _LOCK_SECONDS):
            raise RepositoryGitFailed(f"Another process has been preparing {path} for more than {_LOCK_SECONDS:g} s.")
        yield lock
    finally:
        os.close(lock)


def wait_for_lock(descriptor: int, seconds: float) -> bool:
    """Take the exclusive lock on an open file; return False if another process keeps it for so long. Blocks."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOCK_POLL)
        else:
            return True


def _lowercase_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
