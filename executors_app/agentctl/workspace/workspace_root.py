"""The workspace of a session inside its sandbox: its own repository, and a work tree beside it.

One directory, which every sandbox sees at the same path, contains ``repository.git`` and the linked work tree
``worktrees/<owner>``. Deleting the work tree therefore loses no commit and no staged file. Nothing is shared with
other workspaces: the objects that the repository borrows from the team's repository are mounted read-only.

``python -m executors_app.agentctl.workspace.workspace_root`` does the same where agentctl does not run. It prints one
JSON object as the last line of standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import orjson

from executors_app.agentctl.workspace import recovery_snapshots, worktrees
from executors_app.agentctl.workspace.repository_git import RepositoryGitFailed, resolve_commit, run_git, write_git
from executors_app.agentctl.workspace.worktrees import Seed, Worktree, read_seed
from executors_app.errors import BundleRefused, ExecutorError, LaunchFailed, RepositoryUnusable, WorkspaceGone

WORKSPACE_ROOT: Final = Path("/workspace")
BORROWED_REPOSITORY: Final = "/repository"
"""Where a sandbox sees the team's published objects, mounted read-only."""
CONVERTED_DIRECTORY: Final = "converted"
"""Below the root: ``tree`` and ``record`` of a workspace of an earlier release, until they are migrated."""
MAX_BUNDLE_BYTES: Final = 2 << 30
_MAX_KEPT: Final = 50
_TIMEOUT: Final = 600.0


def sandbox_worktree_path(root: Path, owner_id: str, branch: str = "") -> Worktree:
    """Return the work tree of a session below its root; an empty branch follows from the id."""
    default = worktrees.session_worktree(root, owner_id)
    return Worktree(default.path, branch or default.branch)


def sandbox_repository_path(root: Path) -> Path:
    """Return the path of the workspace's own repository."""
    return root / "repository.git"


def make_workspace(root: Path, worktree: Worktree, seed: Seed, pack: IO[bytes]) -> None:
    """Create the workspace, restore missing parts, or find it complete.

    ``pack`` is the seed's file after its first line. Raises WorkspaceGone (with the reason) if a complete seed is
    needed, RepositoryUnusable, RepositoryGitFailed, OSError.
    """
    if seed.repository:
        worktrees.make_worktree(Path(seed.repository), seed.base, worktree, existed=seed.existed)
        return
    # Two sessions that share a worktree may start at the same moment, each in its own sandbox: without the lock
    # the second one would delete the draft into which the first one is still unpacking.
    with worktrees.worktree_lock(sandbox_repository_path(root)) as held:
        _make_own(root, worktree, seed, pack, held)


def _make_own(root: Path, worktree: Worktree, seed: Seed, pack: IO[bytes], held: int) -> None:
    repository = sandbox_repository_path(root)
    if not _is_repository(repository):
        if not seed.complete:
            raise WorkspaceGone("The workspace's repository was deleted.")
        _set_aside(repository)
        _create_repository(repository, seed, pack, held)
    elif seed.complete:
        _restore_refs(repository, seed, pack, held)
    if (root / CONVERTED_DIRECTORY).is_dir():
        _migrate_converted(root / CONVERTED_DIRECTORY, repository, worktree)
        return
    try:
        worktrees.make_worktree(repository, "", worktree, existed=True)
    except (WorkspaceGone, RepositoryGitFailed):
        if not seed.complete:
            raise
        # Neither branch nor index is usable, but the seed has everything that the control plane knows: start from
        # that. The damaged directories are kept beside the new ones, so that people can examine them.
        _set_aside(repository)
        _set_aside(worktree.path)
        pack.seek(0)
        read_seed(pack)
        _create_repository(repository, seed, pack, held)
        worktrees.make_worktree(repository, "", worktree, existed=True)


def _is_repository(repository: Path) -> bool:
    return (repository / "HEAD").is_file() and all((repository / name).is_dir() for name in ("objects", "refs"))


def _create_repository(repository: Path, seed: Seed, pack: IO[bytes], held: int) -> None:
    """Create the repository in a temporary directory and rename it once it is complete."""
    draft = repository.with_name("repository.draft")
    shutil.rmtree(draft, ignore_errors=True)
    options = ("--quiet", "--bare", "--template=", f"--object-format={seed.object_format}")
    run_git(repository.parent, "init", *options, draft.name, hold=(held,))
    _borrow_objects(draft, seed)
    _unpack(draft, pack, held)
    lines = [f"{commit} {name}" for name, commit in sorted(seed.refs.items())]
    (draft / "packed-refs").write_text("\n".join(["# pack-refs with: sorted", *lines, ""]))
    _configure(draft, seed)
    draft.rename(repository)


def _borrow_objects(repository: Path, seed: Seed) -> None:
    information = repository / "objects" / "info"
    information.mkdir(exist_ok=True)
    (information / "alternates").write_text("".join(f"{directory}\n" for directory in seed.objects))


def _unpack(repository: Path, pack: IO[bytes], held: int) -> None:
    """Unpack the rest of the seed's file, if there is any."""
    here = pack.tell()
    if pack.seek(0, os.SEEK_END) == here:
        return
    pack.seek(here)
    os.lseek(pack.fileno(), here, os.SEEK_SET)  # git reads from the descriptor, behind our buffer
    run_git(repository, "index-pack", "--stdin", "--fix-thin", stdin=pack, timeout=_TIMEOUT, hold=(held,))


def _configure(repository: Path, seed: Seed) -> None:
    """Apply the settings of the team's repository: identity, remotes, excludes and hooks."""
    for key, value in seed.identity.items():
        run_git(repository, "config", f"user.{key}", value)
    for name, url in seed.remotes.items():
        run_git(repository, "config", f"remote.{name}.url", url)
        run_git(repository, "config", f"remote.{name}.fetch", f"+refs/heads/*:refs/remotes/{name}/*")
    for directory in ("info", "hooks"):
        (repository / directory).mkdir(exist_ok=True)
    (repository / "info" / "exclude").write_text(seed.exclude)
    for name, text in seed.hooks.items():
        hook = repository / "hooks" / Path(name).name
        hook.write_bytes(text)
        hook.chmod(0o755)


def _restore_refs(repository: Path, seed: Seed, pack: IO[bytes], held: int) -> None:
    """Add missing refs; existing ones are newer than the seed's."""
    missing = {name: commit for name, commit in seed.refs.items() if resolve_commit(repository, name) is None}
    if not missing:
        return
    _unpack(repository, pack, held)
    for name, commit in missing.items():
        run_git(repository, "update-ref", name, commit)


def _migrate_converted(left: Path, repository: Path, worktree: Worktree) -> None:
    """Move the files and the index of an earlier release's workspace into a new work tree.

    The files were copied as plain data, so git has not run in them before. It may be repeated after a kill: the
    directory is deleted last, and its existence shows that the migration is unfinished.
    """
    if not (worktree.path / ".git").exists():
        worktree.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        run_git(
            repository, "worktree", "add", "--force", "--force", "--no-checkout", str(worktree.path), worktree.branch
        )
    record = Path((worktree.path / ".git").read_text().removeprefix("gitdir:").strip())
    for path in list((left / "record").rglob("*")):
        if path.is_symlink():  # git creates none there, and would write to its target
            path.unlink()
    _move_all(left / "record", record)
    if resolve_commit(worktree.path, "HEAD") is None:
        (record / "HEAD").write_text(f"ref: refs/heads/{worktree.branch}\n")
    if not (record / "index").exists():
        run_git(worktree.path, "read-tree", "HEAD")
    _move_all(left / "tree", worktree.path)
    with contextlib.suppress(RepositoryGitFailed):
        _stage_again(worktree.path)
    with contextlib.suppress(RepositoryGitFailed):  # the agent has to repair an unreadable index
        run_git(worktree.path, "update-index", "-q", "--refresh", timeout=_TIMEOUT)
    shutil.rmtree(left)


def _stage_again(path: Path) -> None:
    """Stage files again whose staged content is missing here, because they were staged after the last snapshot."""
    entries = [line.split("\t", 1) for line in run_git(path, "ls-files", "--stage", "-z").split("\0")[:-1]]
    staged = {name: about.split(" ")[1] for about, name in entries if not about.startswith("160000")}
    wanted = "".join(f"{blob}\n" for blob in staged.values())
    types = run_git(path, "cat-file", "--batch-check", stdin=wanted.encode()).splitlines()
    missing = {line.removesuffix(" missing") for line in types if line.endswith(" missing")}
    names = b"".join(os.fsencode(name) + b"\0" for name, blob in staged.items() if blob in missing)
    if names:
        # Removed from the index first: git takes a file with the recorded time for unchanged.
        run_git(path, "update-index", "--force-remove", "-z", "--stdin", stdin=names)
        run_git(path, "update-index", "--add", "--remove", "-z", "--stdin", stdin=names, timeout=_TIMEOUT)


def _move_all(source: Path, into: Path) -> None:
    for entry in list(source.iterdir()) if source.is_dir() else ():
        target = into / entry.name
        folders = [path for path in (entry, target) if not path.is_symlink() and path.is_dir()]
        if len(folders) == 2:
            _move_all(entry, target)
            continue
        if target in folders:
            shutil.rmtree(target)
        elif entry in folders:
            target.unlink(missing_ok=True)
        entry.replace(target)


def _set_aside(path: Path) -> None:
    if path.exists() or path.is_symlink():
        path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))


def pack_work(repository: Path, worktree: Worktree, known: Sequence[str], into: IO[bytes]) -> dict[str, Any]:
    """Write the session's work as a git bundle; return ``{"refs": {ref: commit}, "packed": whether it has commits}``.

    The work is the session's branch, its newest snapshot and the snapshots that were set aside. ``known`` are commits
    to leave out, if they exist here. Raises WorkspaceGone, RepositoryGitFailed.
    """
    owner = worktree.path.name
    names = (f"refs/heads/{worktree.branch}", recovery_snapshots.session_recovery_ref(owner))
    refs = {name: commit for name in names if (commit := resolve_commit(repository, name))}
    refs |= _set_aside_snapshots(repository, owner)
    if not refs:
        raise WorkspaceGone("Both the session's branch and its snapshots were deleted.")
    without = [f"^{commit}" for commit in known if resolve_commit(repository, commit)]
    if not run_git(repository, "rev-list", "--max-count=1", *refs.values(), *without):
        return {"refs": refs, "packed": False}
    write_git(repository, "bundle", "create", "--quiet", "-", *refs, *without, into=into, limit=MAX_BUNDLE_BYTES)
    return {"refs": refs, "packed": True}


def _set_aside_snapshots(repository: Path, owner: str) -> dict[str, str]:
    options = (f"--count={_MAX_KEPT}", "--sort=-committerdate", "--format=%(refname) %(objectname)")
    listed = run_git(repository, "for-each-ref", *options, f"{recovery_snapshots.KEPT_PREFIX}{owner}/")
    return dict(line.split(" ", 1) for line in listed.splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; exit with 0, or with 1 after printing ``{"error": code, "message"}``."""
    parser = argparse.ArgumentParser(
        prog="workspace_root", description="Creates or packs the workspace of one session, in its sandbox."
    )
    parser.add_argument("what", choices=("make", "bundle"))
    parser.add_argument("--root", type=Path, default=WORKSPACE_ROOT)
    parser.add_argument("--owner", required=True, help="id of the session that owns the work tree")
    parser.add_argument("--branch", default="")
    parser.add_argument("--worktree", type=Path, help="the work tree, if it is not below the root")
    parser.add_argument("--seed", default="-", help="for make: the seed file; - for standard input")
    parser.add_argument("--known", action="append", default=[], metavar="COMMIT")
    parser.add_argument("--into", type=Path, help="for bundle: the file to write")
    answer = run_and_answer(lambda: _run_command(parser.parse_args(argv)))
    sys.stdout.write(orjson.dumps(answer).decode() + "\n")
    return 1 if "error" in answer else 0


def _run_command(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.what == "make":
        with open(0, "rb") if asked.seed == "-" else Path(asked.seed).open("rb") as file:
            make_workspace_from_file(file, asked.root, asked.owner, asked.worktree)
        return {}
    worktree = sandbox_worktree_path(asked.root, asked.owner, asked.branch)
    with asked.into.open("wb") as into:
        return pack_work(sandbox_repository_path(asked.root), worktree, asked.known, into)


def make_workspace_from_file(file: IO[bytes], root: Path, owner: str, path: Path | None = None) -> None:
    """Create the workspace that a seed file describes; raises as ``make_workspace``, and ValueError."""
    seed = read_seed(file)
    worktree = sandbox_worktree_path(root, owner, seed.branch)
    make_workspace(root, Worktree(path, worktree.branch) if path else worktree, seed, file)


def run_and_answer(work: Callable[[], Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the result of ``work``, or ``{"error": code, "message"}`` for an error that people can act on."""
    try:
        return dict(work() or {})
    except ExecutorError as error:
        permanent = {} if error.permanent or not isinstance(error, RepositoryUnusable) else {"permanent": False}
        return {"error": error.code, "message": error.message, **permanent}
    except (OSError, ValueError) as error:
        return {"error": "launch_failed", "message": str(error)}


def parse_refs(answer: Mapping[str, Any]) -> dict[str, str]:
    """Return the refs in an untrusted answer of ``pack_work``, commit by name; raises BundleRefused."""
    refs = answer.get("refs")
    if isinstance(refs, dict) and all(isinstance(name, str) and _is_commit(at) for name, at in refs.items()):
        return refs
    raise BundleRefused("The workspace sent an invalid list of refs.")


def _is_commit(word: object) -> bool:
    return isinstance(word, str) and re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", word) is not None


def parse_error(answer: Mapping[str, Any]) -> ExecutorError:
    """Return the exception for an error answer."""
    message = str(answer.get("message", ""))
    if answer.get("error") == WorkspaceGone.code:
        return WorkspaceGone(message)
    if answer.get("error") == RepositoryUnusable.code:
        return RepositoryGitFailed(message) if answer.get("permanent") is False else RepositoryUnusable(message)
    return LaunchFailed(message)


def parse_answer(output: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in the last line of an untrusted output; None if there is none."""
    try:
        answer = orjson.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


def checked_answer(output: str | bytes, problem: str) -> dict[str, Any]:
    """Return the answer of a command of this module; raises LaunchFailed if it gave none, or the error in it."""
    answer = parse_answer(output)
    if answer is None:
        raise LaunchFailed(problem)
    if "error" in answer:
        raise parse_error(answer)
    return answer


if __name__ == "__main__":
    sys.exit(main())
