"""Git directories of our own: made without templates, locked as a whole, and what is asked of each."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.repositories.git import Git, GitFailed

OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
FORMATS: Final = {"sha1": 40, "sha256": 64}
"""Object formats, and how long the names of objects are in each."""
LOCK_SECONDS: Final = 600.0


def make(path: Path, object_format: str, *, mode: int, shared: str = "") -> None:
    """Make a bare repository at ``path`` unless it is there; two who do so at once make one. Raises OSError.

    ``shared`` is git's ``core.sharedRepository``: who may read the files that git makes there.
    """
    if (path / "HEAD").is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
    try:
        for folder in ("objects/pack", "objects/info", "refs/heads"):
            (draft / folder).mkdir(parents=True)
            for made in (draft / folder, (draft / folder).parent):
                made.chmod(mode)
        write_config(draft, object_format, shared)
        (draft / "HEAD").write_text("ref: refs/heads/none\n")
        for name in ("config", "HEAD"):
            (draft / name).chmod(mode & 0o644)
        draft.chmod(mode)
        draft.rename(path)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not (path / "HEAD").is_file():
            raise


def write_config(path: Path, object_format: str, shared: str = "") -> None:
    """The whole configuration of a git directory of ours."""
    version = "0" if object_format == "sha1" else "1"
    lines = ["[core]", f"\trepositoryFormatVersion = {version}", "\tbare = true"]
    lines += [f"\tsharedRepository = {shared}"] if shared else []
    lines += [] if object_format == "sha1" else ["[extensions]", f"\tobjectFormat = {object_format}"]
    (path / "config").write_text("\n".join(lines) + "\n")


def format_of(path: Path) -> str:
    """The object format of a directory that ``make`` made."""
    return "sha256" if "objectFormat = sha256" in (path / "config").read_text() else "sha1"


@contextmanager
def locked(path: Path, *, folder: bool = False, seconds: float = LOCK_SECONDS) -> Iterator[int]:
    """Hold the only lock at ``path`` (a file that is made, or a ``folder`` that is there); GitFailed.

    Yields the descriptor, which children can keep open. Raises FileNotFoundError for a missing folder.
    """
    until = time.monotonic() + seconds
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            _wait_for(descriptor, path, until)
            # What was waited for may have been removed, and made anew, by who had the lock.
            if _is_at(descriptor, path):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _wait_for(descriptor: int, path: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise GitFailed(f"Another process has been at work on {path} for too long.") from None
            time.sleep(0.02)
        else:
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def refs(git: Git, *patterns: str) -> dict[str, str]:
    """Refs and what they name, as far as they are not symbolic; raises GitFailed."""
    listed = git.run("for-each-ref", "--format=%(objectname) %(refname) %(symref)", *patterns)
    found = {}
    for line in listed.split(b"\n")[:-1]:
        commit, name, symbolic = line.split(b" ", 2)
        if not symbolic:
            found[name.decode(errors="surrogateescape")] = commit.decode()
    return found


def types(git: Git, names: Iterable[str]) -> dict[str, str]:
    """The objects that are there, and the type of each; raises GitFailed."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    said = git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=lines(wanted))
    told = (line.split(" ") for line in said.decode().splitlines())
    return {name: kind for name, kind in told if kind != "missing"}


def commit_of(git: Git, revision: str) -> str | None:
    """The commit that a revision names; None if it names none. Raises GitFailed where git gave no answer."""
    if not revision or revision.startswith("-") or "\0" in revision:
        return None
    try:
        found = git.text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitFailed as error:
        if error.details.get("exit_code") is None:
            raise
        return None
    found = found.removeprefix("--end-of-options\n")
    return found if OBJECT_ID.fullmatch(found) else None


def tree_of(git: Git, commit: str) -> str:
    """The tree of a commit; GitFailed."""
    return git.text("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").removeprefix(
        "--end-of-options\n"
    )


def is_in(git: Git, older: str, newer: str) -> bool:
    """Whether a commit is in the history of another; raises GitFailed."""
    try:
        git.run("merge-base", "--is-ancestor", older, newer)
    except GitFailed as error:
        if error.details.get("exit_code") != 1:
            raise
        return False
    return True


def move(git: Git, changes: Mapping[str, tuple[str, str]], hold: Sequence[int] = ()) -> None:
    """Let refs go from an old commit to a new one (empty: none), all or nothing; no symbolic ref is followed.

    Raises GitFailed where one of them is not what it was.
    """
    zeros = "0" * max((len(commit) for pair in changes.values() for commit in pair), default=40)
    words = ["start"]
    for name, (before, after) in changes.items():
        words += ["option no-deref"]
        words += [f"update {name}\0{after}\0{before or zeros}" if after else f"delete {name}\0{before}"]
    told = "\0".join([*words, "prepare", "commit", ""])
    if changes:
        git.run("update-ref", "--stdin", "-z", stdin=told.encode(errors="surrogateescape"), hold=hold)


def lines(words: Iterable[str]) -> bytes:
    """One a line."""
    return "".join(f"{word}\n" for word in words).encode()


def revisions(wanted: Iterable[str], known: Iterable[str] = ()) -> bytes:
    """What ``--stdin`` and ``--revs`` read: commits, and those that are known with all that they reach."""
    return lines([*wanted, *(f"^{commit}" for commit in known)])
