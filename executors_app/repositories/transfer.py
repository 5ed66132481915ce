"""Move objects between repositories: packs, bundles (parsed as untrusted input), and seeds for sandboxes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from executors_app.agentctl.workspace.worktrees import Seed
from executors_app.errors import BundleRefused
from executors_app.repositories import bare
from executors_app.repositories.git import LONG_TIMEOUT, Git

_PACK_OBJECTS: Final = ("pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet")
LOOSE_UP_TO: Final = 100
"""A pack with fewer objects is unpacked into files, as by a fetch: many small packs make a repository slow."""


def write_pack(
    git: Git, into: IO[bytes], wanted: Iterable[str], known: Iterable[str] = (), *, thin: bool = False
) -> None:
    """Append a pack of everything that ``wanted`` reaches and ``known`` does not; raises GitFailed.

    ``known`` must exist here. A thin pack omits objects that its deltas are based on.
    """
    words = (*_PACK_OBJECTS, "--thin") if thin else _PACK_OBJECTS
    git.write(into, *words, stdin=bare.revision_input(wanted, known))


@contextmanager
def pack_to_file(git: Git, wanted: Iterable[str], known: Iterable[str]) -> Iterator[IO[bytes]]:
    """Write such a pack, thin, to a temporary file."""
    with tempfile.TemporaryFile() as file:
        write_pack(git, file, wanted, known, thin=True)
        yield file


def unpack_pack(pack: IO[bytes], git: Git, hold: Sequence[int]) -> None:
    """Import one of our own packs; raises GitFailed."""
    count = int.from_bytes(os.pread(pack.fileno(), 12, 0)[8:12], "big")
    if count == 0:
        return
    words = ("unpack-objects", "-q") if count < LOOSE_UP_TO else ("index-pack", "--stdin", "--fix-thin")
    os.lseek(pack.fileno(), 0, os.SEEK_SET)
    git.run(*words, stdin=pack, timeout=LONG_TIMEOUT, hold=hold)


def copy_objects(source: Git, target: Git, wanted: Iterable[str], known: Iterable[str], *, hold: Sequence[int]) -> str:
    """Copy everything that ``wanted`` reaches and ``known`` does not to another repository, as one pack.

    Each object is hashed again on arrival. Returns the pack's name. Raises GitFailed.
    """
    words = ("index-pack", "--stdin")
    said = source.pipe(_PACK_OBJECTS, target, words, stdin=bare.revision_input(wanted, known), hold=hold)
    return said.decode().split()[-1]


HEAD_LIMIT: Final = 256 << 10
"""Bytes before the pack."""
MAX_REFS: Final = 500
"""Refs that one bundle may name, and commits that it may build upon."""
MAX_OBJECTS: Final = 2_000_000
"""Objects of one bundle."""
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
            write_pack(git, file, seed.refs.values(), [commit for commit, kind in known.items() if kind == "commit"])
