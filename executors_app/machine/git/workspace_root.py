"""The workspace of a session inside its sandbox: its own repository, and a work tree beside it.

One directory, which every sandbox sees at the same path, contains ``repository.git`` and the linked work tree
``worktrees/<owner>``. Deleting the work tree therefore loses no commit and no staged file. Nothing is shared with
other workspaces: the objects that the repository borrows from the team's repository are mounted read-only.

``python -m executors_app.machine.git.workspace_root`` does the same where agentctl does not run. It prints one
JSON object as the last line of standard output.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import orjson

from executors_app.machine.git import git_failures, recovery_snapshots, worktrees
from executors_app.machine.git.rebuild_plan import is_shared_branch
from executors_app.machine.git.repository_git import RepositoryGitFailed, resolve_commit, run_git, write_git
from executors_app.machine.git.seeds import Seed, read_seed
from executors_app.machine.git.worktrees import Worktree
from executors_app.wire.errors import BundleRefused, ExecutorError, LaunchFailed, RepositoryUnusable, WorkspaceGone

WORKSPACE_ROOT: Final = Path("/workspace")
BORROWED_REPOSITORY: Final = "/repository"
"""Where a sandbox sees the team's published objects, mounted read-only."""
MAX_BUNDLE_BYTES: Final = 2 << 30
_MAX_KEPT: Final = 50
_BASE_KEY: Final = "kandev.base"
"""Setting of a workspace's repository: the branch that the session started from."""
_DAMAGE: Final = "corrupt_object"
"""Name of the failure that a damaged repository causes (``git_failures``)."""
_TIMEOUT: Final = 600.0


def sandbox_worktree_path(root: Path, owner_id: str, branch: str = "") -> Worktree:
    """Return the work tree of a session below its root; an empty branch follows from the id."""
    default = worktrees.session_worktree(root, owner_id)
    return Worktree(default.path, branch or default.branch)


def sandbox_repository_path(root: Path) -> Path:
    """Return the path of the workspace's own repository."""
    return root / "repository.git"


def make_workspace(root: Path, worktree: Worktree, seed: Seed, pack: IO[bytes]) -> str:
    """Create the workspace, restore missing parts, or find it complete; return what a rebuilt one lacks.

    ``pack`` is the seed's file after its first line. Raises WorkspaceGone (with the reason) if a complete seed is
    needed, RepositoryUnusable, RepositoryGitFailed, OSError.
    """
    if seed.repository:
        return worktrees.make_worktree(Path(seed.repository), seed.base, worktree, existed=seed.existed)
    # Two sessions that share a worktree may start at the same moment, each in its own sandbox: without the lock
    # the second one would delete the draft into which the first one is still unpacking.
    with worktrees.worktree_lock(sandbox_repository_path(root)) as held:
        return _make_own(root, worktree, seed, pack, held)


def _make_own(root: Path, worktree: Worktree, seed: Seed, pack: IO[bytes], held: int) -> str:
    repository = sandbox_repository_path(root)
    if not _is_repository(repository):
        if not seed.complete:
            raise WorkspaceGone("The workspace's repository was deleted.")
        _set_aside(repository)
        _create_repository(repository, seed, pack, held)
    elif seed.complete:
        _restore_refs(repository, seed, pack, held)
    try:
        return worktrees.make_worktree(repository, "", worktree, existed=True, owns_repository=True)
    except (WorkspaceGone, RepositoryGitFailed) as error:
        if not seed.complete or not _is_damage(error):
            raise
        # Neither branch nor index is usable, but the seed has everything that the control plane knows: start from
        # that. The damaged directories are kept beside the new ones, so that people can examine them.
        _set_aside(repository)
        _set_aside(worktree.path)
        pack.seek(0)
        read_seed(pack)
        _create_repository(repository, seed, pack, held)
        return worktrees.make_worktree(repository, "", worktree, existed=True, owns_repository=True)


def _is_damage(error: ExecutorError) -> bool:
    """Whether a new repository can help: not against a full disk, or a program that is missing."""
    return bool(error.details.get("failure", _DAMAGE) == _DAMAGE)


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
    if seed.base:
        run_git(repository, "config", _BASE_KEY, seed.base)
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
        run_git(repository, "update-ref", "--no-deref", name, commit)


def _set_aside(path: Path) -> None:
    if path.exists() or path.is_symlink():
        path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))


def pack_work(repository: Path, worktree: Worktree, known: Sequence[str], into: IO[bytes]) -> dict[str, Any]:
    """Write the session's work as a git bundle; return ``{"refs": {ref: commit}, "packed": whether it has commits}``.

    The work is the session's branch, its newest snapshot and the snapshots that were set aside. If the agent went on
    from that branch under another name, the session's branch is reported where the agent was at the newest snapshot,
    which contains that commit: nothing is written here. ``known`` are commits to leave out, if they exist here. Raises
    WorkspaceGone, RepositoryGitFailed.
    """
    owner = worktree.path.name
    own, recovery = worktrees.session_refs(owner, worktree.branch)
    refs = {name: commit for name in (own, recovery) if (commit := resolve_commit(repository, name))}
    bundled = {**refs, **_set_aside_snapshots(repository, owner)}
    refs = dict(bundled)
    if followed := _followed_commit(repository, recovery, own):
        refs[own] = followed
        bundled.pop(own, None)
    if not refs:
        raise WorkspaceGone("The workspace's repository has neither the session's branch nor a snapshot of it.")
    without = [f"^{commit}" for commit in known if resolve_commit(repository, commit)]
    if not run_git(repository, "rev-list", "--max-count=1", *refs.values(), *without):
        return {"refs": refs, "packed": False}
    write_git(repository, "bundle", "create", "--quiet", "-", *bundled, *without, into=into, limit=MAX_BUNDLE_BYTES)
    return {"refs": refs, "packed": True}


def _followed_commit(repository: Path, recovery: str, own: str) -> str:
    """Return the commit that the session's branch stands for elsewhere, if the agent left that branch; else empty.

    A HEAD on the base or on another session's branch is not followed, nor one that lacks commits of the own branch.
    """
    run = partial(run_git, repository)
    found = recovery_snapshots.find_recovery(run, recovery)
    if found is None or not found.ref or found.ref == own or not found.head:
        return ""
    if is_shared_branch(found.ref, run("config", "--local", "--default", "", "--get", _BASE_KEY)):
        return ""
    tip = resolve_commit(repository, own)
    if tip is None:
        return found.head
    try:
        run("merge-base", "--is-ancestor", tip, found.head)
    except RepositoryGitFailed as error:
        if error.details.get("exit_code") != 1:
            raise
        return ""
    return found.head


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
    if "error" in answer:
        return 1
    return 0


def _run_command(options: argparse.Namespace) -> dict[str, Any]:
    if options.what == "make":
        with _open_seed(options.seed) as file:
            return make_workspace_from_file(file, options.root, options.owner, options.worktree)
    worktree = sandbox_worktree_path(options.root, options.owner, options.branch)
    with options.into.open("wb") as into:
        return pack_work(sandbox_repository_path(options.root), worktree, options.known, into)


def _open_seed(path: str) -> IO[bytes]:
    if path == "-":
        return open(0, "rb")
    return Path(path).open("rb")


def make_workspace_from_file(file: IO[bytes], root: Path, owner: str, path: Path | None = None) -> dict[str, str]:
    """Create the workspace that a seed file describes; return ``{note}``: what a rebuilt one lacks, empty for nothing.

    Raises as ``make_workspace``, and ValueError.
    """
    seed = read_seed(file)
    worktree = sandbox_worktree_path(root, owner, seed.branch)
    if path:
        worktree = Worktree(path, worktree.branch)
    return {"note": make_workspace(root, worktree, seed, file)}


def run_and_answer(work: Callable[[], Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the result of ``work``, or ``{"error": code, "message"}`` for an error that people can act on."""
    try:
        return dict(work() or {})
    except ExecutorError as error:
        if error.permanent or not isinstance(error, RepositoryUnusable):
            permanent = {}
        else:
            permanent = {"permanent": False}
        return {"error": error.code, "message": error.message, **permanent}
    except OSError as error:
        known = git_failures.explain_os_error(error)
        if known is None:
            return {"error": LaunchFailed.code, "message": str(error)}
        return {"error": RepositoryUnusable.code, "message": f"{known.sentence} ({error})"}
    except ValueError as error:
        return {"error": LaunchFailed.code, "message": str(error)}


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
        if answer.get("permanent") is False:
            return RepositoryGitFailed(message)
        return RepositoryUnusable(message)
    return LaunchFailed(message)


def parse_answer(output: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in the last line of an untrusted output; None if there is none."""
    try:
        answer = orjson.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    if isinstance(answer, dict):
        return answer
    return None


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
