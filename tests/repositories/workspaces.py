"""Workspaces as in a sandbox: built from a seed, changed, and sent back as a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from executors_app.repositories.archive import Archive
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from tests.executors.repositories import commit, run_git

SESSION = "12345678-90ab-4def-9234-567890abcdef"
OTHER = "abcdef12-3456-4def-9234-567890abcdef"
BRANCH = "kandev/1234567890ab"
HEAD = f"refs/heads/{BRANCH}"
RECOVERY = f"refs/kandev/recovery/{SESSION}"


@dataclass(frozen=True)
class Place:
    """A data directory and a team's repository."""

    root: Path
    repository: Path

    @property
    def team(self) -> TeamRepository:
        return TeamRepository.open(self.repository)

    @property
    def store(self) -> ObjectStore:
        return ObjectStore.of(self.root, self.team)

    @property
    def archive(self) -> Archive:
        return Archive.of(self.root, SESSION, self.store)

    def begin(self, base: str = "") -> Archive:
        store = self.store
        store.update()
        archive = Archive.of(self.root, SESSION, store)
        archive.begin(BRANCH, store.repository.start_of(base))
        return archive

    def seed(self, *, borrow: bool, whole: bool = True, base: str = "main") -> tuple[dict[str, Any], bytes]:
        """Return a seed's header and its pack."""
        into, store = self.root / "seed", self.store
        self.archive.write_seed(
            into,
            branch=BRANCH,
            store=store,
            carried=store.repository.carried(),
            base=base,
            borrow=[str(store.objects)] if borrow else [],
            whole=whole,
        )
        head, _, pack = into.read_bytes().partition(b"\n")
        return orjson.loads(head), pack


def create_sandbox(place: Place, path: Path, *, borrow: bool = True) -> Path:
    """Create a sandbox's repository from a seed, with the branch checked out."""
    head, pack = place.seed(borrow=borrow)
    path.mkdir()
    run_git(path, "init", "--quiet", f"--object-format={head['object_format']}")
    (path / ".git/objects/info/alternates").write_text("".join(f"{one}\n" for one in head["objects"]))
    (path / "pack").write_bytes(pack)
    run_git(path, "unpack-objects", "-q", "--strict", stdin=path / "pack")
    (path / "pack").unlink()
    for name, at in head["refs"].items():
        run_git(path, "update-ref", name, at)
    run_git(path, "checkout", "--quiet", BRANCH)
    run_git(path, "fsck", "--full", "--strict")
    return path


def bundle(sandbox: Path, *refs: str, name: str = "turn.bundle") -> Path:
    """Create the bundle that the sandbox sends, with git itself; return its path."""
    into = sandbox.parent / name
    run_git(sandbox, "bundle", "create", "--quiet", str(into), *(refs or (HEAD,)))
    return into


def make_turn(place: Place, sandbox: Path, name: str, text: str = "work\n") -> str:
    """Make a commit in the sandbox and take it into the archive; return its id."""
    made = commit(sandbox, name, text)
    place.archive.take_in(bundle(sandbox, f"{made}~1..{HEAD}"), BRANCH)
    return made


def files(root: Path) -> dict[str, bytes]:
    """Return every file below a directory, by its relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
