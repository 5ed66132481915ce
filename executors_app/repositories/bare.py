"""Bare git repositories of our own: creation without templates, locks, refs and objects."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app.machine.git.ref_locks import wait_for_lock
from executors_app.repositories.git import Git, GitFailed

OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
OBJECT_FORMATS: Final = {"sha1": 40, "sha256": 64}
"""Length of object names, in digits, by object format."""
LOCK_TIMEOUT: Final = 600.0


def make_bare_repository(path: Path, object_format: str, *, mode: int, shared: str = "") -> None:
    """Create a bare repository unless it exists; concurrent calls create only one. Raises OSError.

    ``shared`` is git's ``core.sharedRepository``: who may read the files that git creates there.
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
        # The rename fails if another call was faster: its repository is equivalent.
        if not (path / "HEAD").is_file():
            raise


def write_config(path: Path, object_format: str, shared: str = "", *, has_work_tree: bool = False) -> None:
    """Write the whole configuration of one of our git directories."""
    needs_extension = object_format != "sha1"
    lines = ["[core]", f"\trepositoryFormatVersion = {int(needs_extension)}"]
    lines.append(f"\tbare = {str(not has_work_tree).lower()}")
    if shared:
        lines.append(f"\tsharedRepository = {shared}")
    if needs_extension:
        lines += ["[extensions]", f"\tobjectFormat = {object_format}"]
    (path / "config").write_text("\n".join(lines) + "\n")


def read_object_format(path: Path) -> str:
    """Return the object format of a directory that ``make_bare_repository`` made."""
    if "objectFormat = sha256" in (path / "config").read_text():
        return "sha256"
    return "sha1"


@contextmanager
def repository_lock(path: Path, *, folder: bool = False, seconds: float = LOCK_TIMEOUT) -> Iterator[int]:
    """Hold the exclusive lock at ``path`` (a file that is created, or an existing ``folder``); raises GitFailed.

    Yields the descriptor, which children can keep open. Raises FileNotFoundError for a missing folder.
    """
    until = time.monotonic() + seconds
    flags = os.O_RDWR | os.O_CREAT
    if folder:
        flags = os.O_RDONLY | os.O_DIRECTORY
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if not wait_for_lock(descriptor, until - time.monotonic()):
                raise GitFailed(f"Another process has held the lock on {path} for too long.")
            # The previous holder may have removed the path, and another process may have recreated it: this lock is
            # then on a file that no other process will open.
            if _is_at(descriptor, path):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def list_refs(git: Git, *patterns: str) -> dict[str, str]:
    """Return refs and the commits they name, without symbolic refs; raises GitFailed."""
    listed = git.run("for-each-ref", "--format=%(objectname) %(refname) %(symref)", *patterns)
    found = {}
    for line in listed.split(b"\n")[:-1]:
        commit, name, symbolic = line.split(b" ", 2)
        if not symbolic:
            found[name.decode(errors="surrogateescape")] = commit.decode()
    return found


def object_types(git: Git, names: Iterable[str]) -> dict[str, str]:
    """Return the type of each object that exists; raises GitFailed."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    output = git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=join_lines(wanted))
    pairs = (line.split(" ") for line in output.decode().splitlines())
    return {name: kind for name, kind in pairs if kind != "missing"}


def resolve_commit(git: Git, revision: str) -> str | None:
    """Return the commit that a revision names; None if it names none. Raises GitFailed if git gives no answer."""
    if not revision or revision.startswith("-") or "\0" in revision:
        return None
    try:
        found = git.text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except GitFailed as error:
        if error.details.get("exit_code") is None:
            raise
        return None
    found = found.removeprefix("--end-of-options\n")  # some versions of git echo the option
    if OBJECT_ID.fullmatch(found):
        return found
    return None


def resolve_tree(git: Git, commit: str) -> str:
    """Return the tree of a commit; raises GitFailed."""
    return git.text("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").removeprefix(
        "--end-of-options\n"
    )


def is_ancestor(git: Git, older: str, newer: str) -> bool:
    """Whether ``older`` is in the history of ``newer``; raises GitFailed."""
    try:
        git.run("merge-base", "--is-ancestor", older, newer)
    except GitFailed as error:
        if error.details.get("exit_code") != 1:
            raise
        return False
    return True


def update_refs(git: Git, changes: Mapping[str, tuple[str, str]], hold: Sequence[int] = ()) -> None:
    """Move refs from an old commit to a new one (empty: none), all or none; follows no symbolic ref.

    Raises GitFailed if one of them no longer names its old commit.
    """
    zeros = "0" * max((len(before or after) for before, after in changes.values()), default=40)
    words = ["start"]
    for name, (before, after) in changes.items():
        words.append("option no-deref")
        if after:
            words.append(f"update {name}\0{after}\0{before or zeros}")
        else:
            words.append(f"delete {name}\0{before}")
    commands = "\0".join([*words, "prepare", "commit", ""])
    if changes:
        git.run("update-ref", "--stdin", "-z", stdin=commands.encode(errors="surrogateescape"), hold=hold)


def join_lines(words: Iterable[str]) -> bytes:
    """Return the words as bytes, one per line."""
    return "".join(f"{word}\n" for word in words).encode()


def revision_input(wanted: Iterable[str], known: Iterable[str] = ()) -> bytes:
    """Return input for ``--stdin`` and ``--revs``: wanted commits, and commits whose history is excluded."""
    return join_lines([*wanted, *(f"^{commit}" for commit in known)])
