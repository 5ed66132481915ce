"""The work inside the submodules of a workspace, as a snapshot stores it, and its return into them.

A snapshot has one more parent if there is such work: a commit whose tree has a directory for each submodule, outer ones
first. It contains whole trees (of the files, of the index, and of each commit that exists only there), so that it can
be transferred and checked like any other. The commits themselves are stored as text: their history stays where it is.
Nothing of it is fetched, and no setting of a submodule applies.

An agent can write such a commit, too. A path leads only to what the snapshot calls a submodule, through directories of
the workspace alone; refs and commits are created only inside the submodule.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from executors_app.machine.git import git_directory, recovery_snapshots, snapshot_restore
from executors_app.machine.git.git_directory import is_branch_ref
from executors_app.machine.git.private_git_directory import common_directory_of
from executors_app.machine.git.recovery_snapshots import KEPT_PREFIX, RecoverySnapshot
from executors_app.machine.git.repository_git import run_git
from executors_app.machine.git.submodules import (
    fill_from_copy,
    find_repository,
    is_plain_repository,
    is_submodule_path,
    submodule_copies,
)
from executors_app.machine.git.workspace_git import GitError, GitOutput, WorkspaceGit
from executors_app.machine.process import spawning
from executors_app.wire.errors import RepositoryUnusable

logger = logging.getLogger(__name__)

MAX_SUBMODULES: Final = 100
MAX_COMMITS: Final = 200
"""Commits of one submodule that are stored."""
MAX_COMMIT_BYTES: Final = 4 << 20
"""Length of their texts together."""
MAX_OBJECTS: Final = 200_000
MAX_REFS: Final = 1000
NOT_RESTORED: Final = "The work inside submodules was not restored"
STASH: Final = "refs/stash"
_LOOSE_OBJECTS: Final = 100
"""With more objects than this, they are stored as a pack."""
_LIMIT: Final = 64 << 20
_TIMEOUT: Final = 300.0
_SECONDS: Final = 600.0
"""Maximum time for restoring all submodules of a snapshot, which can name many with thousands of commits each."""
_SHARE: Final = 0.5
"""Part of the remaining time that each of them may use."""
_OBJECT_ID: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_KEPT_REF: Final = re.compile(re.escape(KEPT_PREFIX) + r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class SavedSubmodule:
    """What a snapshot has of one submodule."""

    path: bytes
    """From the root of the workspace."""
    head: str
    """The checked-out commit."""
    ref: str = ""
    """The full name of the branch; empty for a detached HEAD."""
    files: str = ""
    """The tree of the files."""
    index: str = ""
    """The tree of the index."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Its own branches and stash, and commits that were left; commit by name."""
    modules: str = ""
    """Its git directory, relative to the one of the repository around it; empty if it is inside the submodule."""
    commits: bytes = b""
    """Its own commits, as ``git cat-file --batch`` writes them."""
    trees: tuple[str, ...] = ()
    """The trees of these commits."""

    def describe(self) -> bytes:
        """Return the fields that are neither trees nor commits, as JSON."""
        about = {
            "path": quote_from_bytes(self.path),
            "head": self.head,
            "ref": quote_from_bytes(os.fsencode(self.ref)),
            "refs": {quote_from_bytes(os.fsencode(name)): at for name, at in sorted(self.refs.items())},
            "modules": quote_from_bytes(os.fsencode(self.modules)),
        }
        return json.dumps(about, indent=1).encode() + b"\n"


def parse_description(text: bytes) -> SavedSubmodule:
    """Parse what ``describe`` returned; raises ValueError for anything else."""
    try:
        about = json.loads(text)
        refs = {_unquote(name): str(at) for name, at in about["refs"].items()}
        path, ref, modules = (unquote_to_bytes(str(about[key])) for key in ("path", "ref", "modules"))
        parsed = SavedSubmodule(path, str(about["head"]), os.fsdecode(ref), refs=refs, modules=os.fsdecode(modules))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the description of a submodule cannot be read") from error
    if len(refs) > MAX_REFS:
        raise ValueError("the description of a submodule names too many refs")
    if not all(_OBJECT_ID.fullmatch(at) for at in (parsed.head, *refs.values())):
        raise ValueError("the description of a submodule names something other than commits")
    if not all(is_saved_ref(name) for name in refs) or (parsed.ref and not is_branch_ref(parsed.ref)):
        raise ValueError("the description of a submodule names a ref that is not its own")
    return parsed


def _unquote(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))


def is_saved_ref(name: str) -> bool:
    """Whether a ref may be saved with a submodule: a branch, the stash, or a commit that was left."""
    return is_branch_ref(name) or name == STASH or _KEPT_REF.fullmatch(name) is not None


def copy_objects(source: WorkspaceGit, target: WorkspaceGit, names: Sequence[str], timeout: float) -> None:
    """Copy these objects, checked as a transfer checks them, so that no object of a submodule can stop one.

    Raises GitError.
    """
    if not names:
        return
    packing = ("pack-objects", "--stdout", "--delta-base-offset", "--quiet")
    transfer = partial(source.pipe, packing, target, stdin=_lines(names), timeout=timeout)
    if len(names) > _LOOSE_OBJECTS:
        _store_pack(target, transfer)
    else:
        transfer(("unpack-objects", "-q", "--strict"))


def _store_pack(target: WorkspaceGit, transfer: Callable[..., GitOutput]) -> None:
    """Store a pack once it is complete and checked.

    A git that refuses a pack leaves it behind, and each snapshot would do so. What is left after a crash has a name
    that ``git gc`` removes.
    """
    own = git_directory.git_directory_of(target.root)
    if own is None:
        raise GitError("the workspace is not a git repository")
    objects = common_directory_of(own) / "objects"
    draft = Path(_run_as_agent("mktemp", "--directory", str(objects / "tmp_objdir-kandev-XXXXXXXX")))
    try:
        _run_as_agent("mkdir", str(draft / "pack"))
        environment = {"GIT_OBJECT_DIRECTORY": str(draft), "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}
        stored = transfer(("index-pack", "--stdin", "--strict"), environment=environment).text.split("\t")[-1]
        # The index last, because git finds a pack by it.
        files = (str(draft / "pack" / f"pack-{stored}.{kind}") for kind in ("pack", "idx"))
        _run_as_agent("mkdir", "--parents", str(objects / "pack"))
        _run_as_agent("mv", "--force", "--target-directory", str(objects / "pack"), *files)
    finally:
        _run_as_agent("rm", "--recursive", "--force", str(draft))


def _run_as_agent(*command: str) -> str:
    """Run a command with the agent's rights, because it could replace a directory on the way by a link."""
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=_TIMEOUT, text=True, **spawning.child_user_arguments()
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise GitError(f"{command[0]} failed in a repository of the workspace") from error
    output: str = done.stdout
    return output.rstrip("\n")


def missing_objects(git: WorkspaceGit, names: Sequence[str]) -> list[str]:
    """Return those of the objects that a repository does not have; raises GitError."""
    if not names:
        return []
    listed = git.run("cat-file", "--batch-check=%(objectname)", stdin=_lines(names), limit=_LIMIT).text
    return [line.split(" ", 1)[0] for line in listed.splitlines() if line.endswith(" missing")]


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def split_commits(batch: bytes) -> dict[str, bytes]:
    """Return the texts in an output of ``git cat-file --batch``, by commit; raises ValueError."""
    found: dict[str, bytes] = {}
    while batch:
        head, _, rest = batch.partition(b"\n")
        words = head.decode("ascii", "replace").split(" ")
        if len(words) != 3 or words[1] != "commit" or not words[2].isdecimal() or len(words[2]) > 9:
            raise ValueError("the commits of a submodule cannot be read")
        size = int(words[2])
        if len(rest) < size + 1 or len(found) >= 10 * MAX_COMMITS:
            raise ValueError("the commits of a submodule are not complete")
        found[words[0]], batch = rest[:size], rest[size + 1 :]
    return found


def parents_of(text: bytes) -> list[str]:
    """Return the parents that the text of a commit names."""
    lines = text.partition(b"\n\n")[0].decode("utf-8", "replace").splitlines()
    return [line.removeprefix("parent ") for line in lines if line.startswith("parent ")]


def read_saved_submodules(git: WorkspaceGit, snapshot: RecoverySnapshot, problems: list[str]) -> list[SavedSubmodule]:
    """Return what a snapshot has of submodules, outer ones first; add a sentence to ``problems`` for each other one.

    Raises GitError, ValueError if none can be read.
    """
    if not snapshot.submodules:
        return []
    # By an id alone, a message could name a commit that is not this session's.
    if snapshot.submodules not in git.text("rev-parse", f"{snapshot.commit}^@").split():
        raise ValueError("the snapshot names a commit that is not its own")
    listed = git.run("ls-tree", "-z", "--name-only", snapshot.submodules, limit=_LIMIT).fields[:MAX_SUBMODULES]
    found = []
    for name in listed:
        try:
            found.append(_read_one(git, f"{snapshot.submodules}:{os.fsdecode(name)}"))
        except (GitError, ValueError) as error:
            problems.append(f"{NOT_RESTORED}: {error}")
    return sorted(found, key=lambda each: each.path.count(b"/"))


def _read_one(git: WorkspaceGit, place: str) -> SavedSubmodule:
    about = parse_description(git.run("cat-file", "blob", f"{place}/about").data)
    files, index = git.text("rev-parse", f"{place}/files", f"{place}/index").split("\n")
    trees = git.run("ls-tree", "-d", f"{place}/trees/", limit=_LIMIT).text.splitlines()
    commits = git.run("cat-file", "blob", f"{place}/commits", limit=2 * MAX_COMMIT_BYTES).data
    return SavedSubmodule(
        *(about.path, about.head, about.ref, files, index, about.refs, about.modules, commits),
        tuple(line.split()[2] for line in trees),
    )


class SubmoduleRestorer:
    """Restores the work inside the submodules of one workspace, whose own files and index are restored already.

    ``rebuilt``: the files were written just now, and nothing runs here; otherwise an agent may be at work. ``draft``:
    the workspace is not at its place yet.
    """

    def __init__(self, git: WorkspaceGit, snapshot: RecoverySnapshot, *, rebuilt: bool, draft: bool = False):
        self._git, self._snapshot, self._rebuilt, self._draft = git, snapshot, rebuilt, draft
        self._restored: dict[bytes, tuple[SavedSubmodule, WorkspaceGit]] = {}
        self._deadline = time.monotonic() + _SECONDS

    def restore(self) -> list[str]:
        """Restore every submodule that can be, and return a sentence about each other one; never raises GitError."""
        problems: list[str] = []
        try:
            try:
                saved = read_saved_submodules(self._git, self._snapshot, problems)
            except (GitError, ValueError) as error:
                return [f"{NOT_RESTORED}: {error}"]
            for each in saved:
                try:
                    self._restore(each)
                except (GitError, RepositoryUnusable, OSError, ValueError) as error:
                    name = each.path.decode("utf-8", "replace")
                    logger.warning("the submodule %s was not restored: %s", name, error)
                    problems.append(f"The work inside the submodule {name} was not restored: {str(error)[:300]}")
        finally:
            for _, inner in self._restored.values():
                inner.close()
        return problems

    def _restore(self, saved: SavedSubmodule) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            raise ValueError("the time for submodules was over")
        around, outer = self._around(saved.path)
        name = saved.path
        if around:
            name = saved.path[len(around) + 1 :]
        self._check_place(saved.path, name, around)
        place = self._git.root / os.fsdecode(saved.path)
        is_new = False
        if not os.path.lexists(place / ".git"):
            if not self._rebuilt and any(place.iterdir()):
                raise ValueError("it has files without a repository, which no snapshot has")
            is_new = self._make_repository(saved, place, outer, os.fsdecode(name))
        find_repository(outer.root, name)
        inner = self._git.inside(place)
        inner.deadline = now + (self._deadline - now) * _SHARE
        self._restored[saved.path] = saved, inner
        self._bring_objects(saved, inner)
        self._bring_commits(saved, inner)
        self._set_refs(saved, inner, is_new=is_new)
        self._set_files(saved, inner, is_new=is_new)

    def _around(self, path: bytes) -> tuple[bytes, WorkspaceGit]:
        """Return the submodule around a nested one, and git there; an empty path for the workspace itself."""
        parts = path.split(b"/")
        for length in range(len(parts) - 1, 0, -1):
            prefix = b"/".join(parts[:length])
            if prefix in self._restored:
                return prefix, self._restored[prefix][1]
        return b"", self._git

    def _check_place(self, path: bytes, name: bytes, around: bytes) -> None:
        """Raise ValueError unless this is a submodule of the snapshot, below directories of the workspace."""
        parts = path.split(b"/")
        if not is_submodule_path(path):
            raise ValueError("its path is not valid")
        tree = f"{self._snapshot.commit}^{{tree}}"
        if around:
            tree = self._restored[around][0].files
        listed = self._git.run("--literal-pathspecs", "ls-tree", "-z", tree, "--", os.fsdecode(name)).fields
        if len(listed) != 1 or not listed[0].startswith(b"160000 ") or listed[0].partition(b"\t")[2] != name:
            raise ValueError("the snapshot has no submodule there")
        place = self._git.root
        for part in parts:
            place /= os.fsdecode(part)
            if self._rebuilt and not os.path.lexists(place):
                place.mkdir()
            if place.is_symlink() or not place.is_dir():
                raise ValueError("its path is not a directory of the workspace")

    def _make_repository(self, saved: SavedSubmodule, place: Path, outer: WorkspaceGit, name: str) -> bool:
        """Connect the repository that has outlived its directory, or create one; return whether it is a new one."""
        own = git_directory.git_directory_of(outer.root)
        is_named = saved.modules.startswith("modules/") and ".." not in Path(saved.modules).parts
        if own is not None and is_named and is_plain_repository(own.resolve(), saved.modules):
            _write_as_agent(place / ".git", f"gitdir: {own.resolve() / saved.modules}\n".encode())
            return False
        if self._rebuilt and not self._draft and outer is self._git:
            copy = submodule_copies(outer).get(name)
            if copy is not None:
                fill_from_copy(outer, name, copy)
        if not os.path.lexists(place / ".git"):
            if len(saved.head) > 40:
                run_git(place, "init", "--quiet", "--template=", "--object-format=sha256")
            else:
                run_git(place, "init", "--quiet", "--template=")
        return True

    def _bring_objects(self, saved: SavedSubmodule, inner: WorkspaceGit) -> None:
        trees = (saved.files, saved.index, *saved.trees)
        named = self._git.run("rev-list", "--objects", "--no-object-names", *trees, limit=_LIMIT, timeout=_TIMEOUT)
        if named.truncated:
            raise ValueError("the snapshot has too many files of it")
        copy_objects(self._git, inner, missing_objects(inner, named.text.splitlines()), _TIMEOUT)

    def _bring_commits(self, saved: SavedSubmodule, inner: WorkspaceGit) -> None:
        """Create the commits that are missing; those whose history is not here become the ends of a shallow one."""
        texts = split_commits(saved.commits)
        created = missing_objects(inner, list(texts))
        for commit in created:
            made = inner.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=texts[commit]).text
            if made != commit:
                raise ValueError("a commit has another content than its name says")
        parents: set[str] = set()
        for commit in created:
            parents.update(parents_of(texts[commit]))
        unknown = set(missing_objects(inner, sorted(parents)))
        ends = [commit for commit in created if unknown.intersection(parents_of(texts[commit]))]
        own = git_directory.git_directory_of(inner.root)
        if ends and own is not None:
            shallow = common_directory_of(own) / "shallow"
            before = git_directory.read_file_end(shallow, MAX_COMMIT_BYTES) or b""
            _write_as_agent(shallow, before + _lines(ends))

    def _set_refs(self, saved: SavedSubmodule, inner: WorkspaceGit, *, is_new: bool) -> None:
        refs = dict(saved.refs)
        if is_new and saved.ref:
            refs[saved.ref] = saved.head
        for name, commit in refs.items():
            existing = inner.run("rev-parse", "--verify", "--quiet", name, good=(0, 1, 128)).text
            if existing and not is_new:
                continue
            try:
                inner.run("update-ref", "--no-deref", name, commit)
            except GitError as error:
                # As a directory and a file, a newer branch and this one exclude each other.
                logger.info("a commit is kept under another name than %s: %s", name, error)
                inner.run("update-ref", "--no-deref", f"{KEPT_PREFIX}{commit[:16]}", commit)

    def _set_files(self, saved: SavedSubmodule, inner: WorkspaceGit, *, is_new: bool) -> None:
        recovery = RecoverySnapshot(saved.files, saved.head, saved.index, self._snapshot.session_id)
        run = partial(_run, inner)
        if is_new:
            # No agent has written the settings of this repository.
            if saved.ref:
                inner.run("symbolic-ref", "HEAD", saved.ref, all_settings=True)
            else:
                inner.run("update-ref", "--no-deref", "HEAD", saved.head, all_settings=True)
            snapshot_restore.restore_recovery(run, recovery)
            return
        head_now = inner.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", good=(0, 1, 128)).text
        if self._rebuilt:
            run("checkout-index", "--all", "--quiet", "--force")
        if head_now != saved.head:
            aside = self._set_aside(saved, inner)
            raise ValueError(f"it has new commits since the last snapshot, which is kept there at {aside}")
        if self._rebuilt:
            snapshot_restore.overlay_uncommitted_work(
                run, inner.root, recovery, snapshot_restore.index_beside(self._git.root)
            )
        else:
            snapshot_restore.restore_recovery(run, recovery)

    def _set_aside(self, saved: SavedSubmodule, inner: WorkspaceGit) -> str:
        identity = recovery_snapshots.IDENTITY
        made = inner.run(
            "commit-tree", saved.files, "-p", saved.head, "-m", "Files of the last snapshot", environment=identity
        ).text
        ref = f"{KEPT_PREFIX}{made[:16]}"
        inner.run("update-ref", "--no-deref", ref, made)
        return ref


def _run(git: WorkspaceGit, *arguments: str, index: Path | None = None, **options: Any) -> str:
    environment = {}
    if index:
        environment["GIT_INDEX_FILE"] = str(index)
    return git.text(*arguments, environment=environment, limit=_LIMIT, timeout=_TIMEOUT, **options)


def _write_as_agent(path: Path, content: bytes) -> None:
    """Write a file with the agent's rights, because it could replace a directory on the way by a link."""
    try:
        subprocess.run(
            ["tee", "--", str(path)],
            input=content,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            **spawning.child_user_arguments(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{path} could not be written") from error
