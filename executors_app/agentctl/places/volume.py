"""A workspace in a volume of a Docker engine, made from inside: ``python -m executors_app.agentctl.places.volume``.

The engine may be far away, so what it needs of the repository came in a git bundle, and what the session has made of
it goes home in another. In the volume are a bare repository and the session's worktree of it, which is made,
found and rebuilt as on any disk. The answer is one JSON object, the last line of standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl import recovery_ref
from executors_app.agentctl.places import worktrees
from executors_app.agentctl.places.git import commit_of, git
from executors_app.agentctl.places.worktrees import Worktree
from executors_app.errors import ExecutorError, WorkspaceGone

ROOT: Final = Path("/workspace")
INCOMING: Final = "incoming.bundle"
_TIMEOUT: Final = 600.0


def worktree_in(root: Path, session_id: str, branch: str = "") -> Worktree:
    """Where the worktree of a session is in its volume; an empty branch follows from the id."""
    place = worktrees.place_of(root, session_id)
    return Worktree(place.path, branch or place.branch)


def repository_in(root: Path) -> Path:
    """The volume's own repository."""
    return root / "repository.git"


def make(root: Path, worktree: Worktree) -> None:
    """Make the worktree, or find it, of what is there or has come; WorkspaceGone, RepositoryUnusable."""
    repository, bundle = repository_in(root), root / INCOMING
    if bundle.exists():
        _take_in(repository, bundle)
        bundle.unlink()
    if not repository.is_dir():
        raise WorkspaceGone("The session's volume holds no repository.")
    worktrees.make(repository, "", worktree, existed=True)


def _take_in(repository: Path, bundle: Path) -> None:
    """All refs of a bundle, but none that the volume has already: that one is newer."""
    if not repository.is_dir():
        draft = repository.with_name("repository.draft")
        git(repository.parent, "init", "--quiet", "--bare", draft.name)
        git(draft, "fetch", "--quiet", str(bundle), "+refs/*:refs/*", timeout=_TIMEOUT)
        draft.rename(repository)
        return
    heads = [line.split(" ", 1)[1] for line in git(repository, "bundle", "list-heads", str(bundle)).splitlines()]
    missing = [ref for ref in heads if ref.startswith("refs/") and commit_of(repository, ref) is None]
    if missing:
        git(repository, "fetch", "--quiet", str(bundle), *(f"{ref}:{ref}" for ref in missing), timeout=_TIMEOUT)


def bundle(root: Path, worktree: Worktree, known: Sequence[str], into: Path) -> dict[str, Any]:
    """Pack branch and snapshot of a volume for the way home, as ``pack`` does."""
    return pack(repository_in(root), worktree, known, into)


def pack(repository: Path, worktree: Worktree, known: Sequence[str], into: Path) -> dict[str, Any]:
    """Pack branch and snapshot for the way home: ``{"refs": {ref: commit}, "packed": whether there was anything new}``.

    ``known`` are commits that need no packing, as far as they are here. Raises WorkspaceGone, GitFailed.
    """
    names = (f"refs/heads/{worktree.branch}", recovery_ref.ref_of(worktree.path.name))
    refs = {name: commit for name in names if (commit := commit_of(repository, name))}
    if not refs:
        raise WorkspaceGone("There is neither the session's branch nor a snapshot any more.")
    without = [f"^{commit}" for commit in known if commit_of(repository, commit)]
    if not git(repository, "rev-list", "--max-count=1", *refs.values(), *without):
        return {"refs": refs, "packed": False}
    git(repository, "bundle", "create", "--quiet", str(into), *refs, *without, timeout=_TIMEOUT)
    return {"refs": refs, "packed": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0, or 1 with ``{"error": code, "message"}``."""
    parser = argparse.ArgumentParser(prog="volume", description="The workspace of one session, in its volume.")
    parser.add_argument("what", choices=("make", "bundle"))
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--session-id", required=True)
    parser.add_argument("--branch", required=True)
    parser.add_argument("--known", action="append", default=[], metavar="COMMIT")
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args(argv)
    worktree = worktree_in(asked.root, asked.session_id, asked.branch)
    answer: dict[str, Any] = {}
    try:
        if asked.what == "make":
            make(asked.root, worktree)
        else:
            answer = bundle(asked.root, worktree, asked.known, asked.into)
    except (ExecutorError, OSError) as error:
        code = error.code if isinstance(error, ExecutorError) else "launch_failed"
        answer = {"error": code, "message": str(error)}
    sys.stdout.write(orjson.dumps(answer).decode() + "\n")
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
