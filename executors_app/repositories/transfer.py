"""Move objects between repositories: packs that were measured first, and seeds for sandboxes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from executors_app.machine.git.seeds import Seed
from executors_app.repositories import bare, pack_check
from executors_app.repositories.git import CHECK, Bounds, Git, run_limited
from executors_app.wire.errors import BundleRefused

_PACK_OBJECTS: Final = ("pack-objects", "--revs", "--delta-base-offset", "--quiet")
OBJECT_LIMIT: Final = 256 << 20
"""Largest object that a workspace may send, in bytes, unpacked."""
INFLATED_LIMIT: Final = 4 << 30
"""Largest sum of the objects of one bundle, in bytes, unpacked."""
MAX_OBJECTS: Final = 1_000_000
"""Objects of one bundle."""
_MEASURING: Final = Bounds(memory=256 << 20, cpu=120, seconds=300.0, output=1 << 10, file=0)
_REFUSALS: Final = {
    pack_check.DAMAGED: "The pack is damaged.",
    pack_check.OBJECT: "An object is too large when it is unpacked.",
    pack_check.STRUCTURE: "A commit, tree or tag is too large when it is unpacked.",
    pack_check.TOTAL: "The objects are too large in total when they are unpacked.",
    pack_check.OBJECTS: "There are too many objects.",
}


@dataclass(frozen=True, slots=True)
class PackSize:
    """What a pack contains."""

    objects: int
    inflated: int
    """Bytes of all its objects, unpacked."""


def measure_pack(pack: IO[bytes], offset: int, object_format: str, *, total_bytes: int | None = None) -> PackSize:
    """Return the size of a pack whose first byte is at ``offset``, without unpacking it.

    ``total_bytes`` replaces the limit on the sum. Raises BundleRefused if it is damaged or beyond a limit, GitFailed.
    """
    if total_bytes is None:
        total_bytes = INFLATED_LIMIT
    program = Path(pack_check.__file__)
    digest_bytes = bare.OBJECT_FORMATS[object_format] // 2
    numbers = (offset, MAX_OBJECTS, OBJECT_LIMIT, total_bytes, digest_bytes)
    command = [sys.executable, "-I", "-S", str(program), *map(str, numbers)]
    answer: dict[str, Any] = json.loads(run_limited(command, _MEASURING, stdin=pack, environment={}))
    if reason := answer.get("refused"):
        raise BundleRefused(_REFUSALS[reason])
    return PackSize(answer["objects"], answer["bytes"])


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack in a directory of ours, complete in itself, with its index."""

    path: Path
    size: PackSize

    @property
    def index(self) -> Path:
        """The path of its index."""
        return self.path.with_suffix(".idx")

    @property
    def stored(self) -> int:
        """Bytes on disk, without the index."""
        return self.path.stat().st_size


def make_pack(
    git: Git, folder: Path, wanted: Iterable[str], known: Iterable[str], *, object_format: str, hold: Sequence[int]
) -> Pack | None:
    """Write a pack of everything that ``wanted`` reaches and ``known`` does not; None if that is nothing.

    ``known`` must exist here. Raises BundleRefused if it is beyond a limit, GitFailed.
    """
    words = (*_PACK_OBJECTS, "--non-empty", str(folder / "pack"))
    names = git.run(*words, stdin=bare.revision_input(wanted, known), bounds=CHECK, hold=hold).decode().split()
    if not names:
        return None
    path = folder / f"pack-{names[-1]}.pack"
    with path.open("rb", buffering=0) as file:
        return Pack(path, measure_pack(file, 0, object_format))


def copy_objects(source: Git, target: Git, wanted: Iterable[str], known: Iterable[str], *, hold: Sequence[int]) -> str:
    """Copy everything that ``wanted`` reaches and ``known`` does not to another repository, as one pack.

    Each object is hashed again on arrival. Returns the pack's name. Raises GitFailed.
    """
    words = ("index-pack", "--stdin", "--threads=1")
    packing = (*_PACK_OBJECTS, "--stdout")
    output = source.pipe(packing, target, words, stdin=bare.revision_input(wanted, known), hold=hold)
    return output.decode().split()[-1]


def write_seed(git: Git, into: Path, seed: Seed, borrowed: Mapping[str, str]) -> None:
    """Write a seed, followed by a pack of its refs if it is complete; raises GitFailed, OSError.

    ``borrowed`` are the refs of the repository that the workspace borrows objects from, commit by name: what they
    reach is left out of the pack.
    """
    with into.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(seed.to_line())
        file.flush()
        if seed.complete:
            # Only commits that this repository has can be excluded; sending the others again does no harm.
            known = bare.object_types(git, borrowed.values())
            wanted = bare.revision_input(
                seed.refs.values(), [commit for commit, kind in known.items() if kind == "commit"]
            )
            git.write(file, *_PACK_OBJECTS, "--stdout", stdin=wanted)
