"""Move objects between repositories: packs, bundles (parsed as untrusted input), and seeds for sandboxes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from executors_app.machine.git.worktrees import Seed
from executors_app.repositories import bare, pack_check
from executors_app.repositories.git import CHECK, Bounds, Git, GitFailed, run_limited
from executors_app.wire.errors import BundleRefused

_PACK_OBJECTS: Final = ("pack-objects", "--revs", "--delta-base-offset", "--quiet")
BUNDLE_LIMIT: Final = 2 << 30
"""Largest bundle, in bytes."""
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
    program = Path(pack_check.__file__)
    limits = (MAX_OBJECTS, OBJECT_LIMIT, INFLATED_LIMIT if total_bytes is None else total_bytes)
    words = (offset, *limits, bare.OBJECT_FORMATS[object_format] // 2)
    command = [sys.executable, "-I", "-S", str(program), *map(str, words)]
    said: dict[str, Any] = json.loads(run_limited(command, _MEASURING, stdin=pack, environment={}))
    if reason := said.get("refused"):
        raise BundleRefused(_REFUSALS[reason])
    return PackSize(said["objects"], said["bytes"])


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
    said = git.run(*words, stdin=bare.revision_input(wanted, known), bounds=CHECK, hold=hold).decode().split()
    if not said:
        return None
    path = folder / f"pack-{said[-1]}.pack"
    with path.open("rb", buffering=0) as file:
        return Pack(path, measure_pack(file, 0, object_format))


def index_bundle(git: Git, file: IO[bytes], header: BundleHeader, hold: Sequence[int]) -> None:
    """Index the pack of a bundle in git's object directory, which must be a quarantine. Raises BundleRefused.

    Sizes are summed first, so that git unpacks nothing beyond the limits.
    """
    try:
        measure_pack(file, header.offset, header.object_format)
        os.lseek(file.fileno(), header.offset, os.SEEK_SET)
        words = ("index-pack", "--stdin", "--fix-thin", "--strict", "--threads=1", f"--max-input-size={BUNDLE_LIMIT}")
        git.run(*words, stdin=file, bounds=CHECK, hold=hold)
    except GitFailed as error:
        raise BundleRefused(f"The bundle cannot be imported: {error.message}") from error


def copy_objects(source: Git, target: Git, wanted: Iterable[str], known: Iterable[str], *, hold: Sequence[int]) -> str:
    """Copy everything that ``wanted`` reaches and ``known`` does not to another repository, as one pack.

    Each object is hashed again on arrival. Returns the pack's name. Raises GitFailed.
    """
    words = ("index-pack", "--stdin", "--threads=1")
    packing = (*_PACK_OBJECTS, "--stdout")
    said = source.pipe(packing, target, words, stdin=bare.revision_input(wanted, known), hold=hold)
    return said.decode().split()[-1]


HEAD_LIMIT: Final = 256 << 10
"""Bytes before the pack."""
MAX_REFS: Final = 500
"""Refs that one bundle may name, and commits that it may build upon."""
_FORMAT: Final = "@object-format="
_PREREQUISITE: Final = re.compile(r"-([0-9a-f]{40,64})(?: .*)?")
_REF: Final = re.compile(r"([0-9a-f]{40,64}) (refs/[!-~]{1,300})")


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """The parsed header of a bundle."""

    object_format: str
    refs: Mapping[str, str]
    prerequisites: frozenset[str]
    """Commits that the receiver must have."""
    objects: int
    """Number of objects in the pack, according to its header."""
    offset: int
    """Where the pack begins, in bytes."""


def parse_bundle(file: IO[bytes]) -> BundleHeader:
    """Parse the header of a bundle; raises BundleRefused."""
    head = os.pread(file.fileno(), HEAD_LIMIT, 0)
    text, end, _ = head.partition(b"\n\n")
    if not end:
        raise BundleRefused("This is not a bundle, or it names too many refs.")
    try:
        first, *rest = text.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise BundleRefused("The bundle names refs outside ASCII.") from error
    if first not in {"# v2 git bundle", "# v3 git bundle"}:
        raise BundleRefused("This is not a bundle of a known version.")
    object_format = "sha1"
    while rest and rest[0].startswith("@"):
        capability = rest.pop(0)
        object_format = capability.removeprefix(_FORMAT)
        if first != "# v3 git bundle" or not capability.startswith(_FORMAT) or object_format not in bare.OBJECT_FORMATS:
            raise BundleRefused("The bundle requires a capability that is not supported.")
    offset = len(text) + len(end)
    refs, prerequisites = _lines(rest, bare.OBJECT_FORMATS[object_format])
    return BundleHeader(object_format, refs, prerequisites, _count(file, offset), offset)


def _lines(rest: Iterable[str], length: int) -> tuple[dict[str, str], frozenset[str]]:
    refs: dict[str, str] = {}
    prerequisites = set()
    for line in rest:
        if needed := _PREREQUISITE.fullmatch(line):
            name = needed[1]
            prerequisites.add(name)
        elif named := _REF.fullmatch(line):
            name = named[1]
            if refs.setdefault(named[2], name) != name:
                raise BundleRefused("The bundle names a ref twice.")
        else:
            raise BundleRefused("The bundle has a line that is neither a ref nor a commit.")
        if len(name) != length:
            raise BundleRefused("The bundle names commits in another object format.")
    if len(refs) > MAX_REFS or len(prerequisites) > MAX_REFS:
        raise BundleRefused(f"The bundle names more than {MAX_REFS} refs.")
    return refs, frozenset(prerequisites)


def _count(file: IO[bytes], offset: int) -> int:
    head = os.pread(file.fileno(), 12, offset)
    if not head:
        return 0
    if len(head) < 12 or head[:4] != b"PACK" or int.from_bytes(head[4:8], "big") not in {2, 3}:
        raise BundleRefused("The bundle has no pack where one should be.")
    count = int.from_bytes(head[8:], "big")
    if count > MAX_OBJECTS:
        raise BundleRefused(f"The bundle has more than {MAX_OBJECTS} objects.")
    return count


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
