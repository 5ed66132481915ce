"""Bundles of workspaces, parsed and imported as untrusted input."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from executors_app.repositories import bare
from executors_app.repositories.git import CHECK, Git, GitFailed
from executors_app.repositories.transfer import MAX_OBJECTS, measure_pack
from executors_app.wire.errors import BundleRefused

BUNDLE_LIMIT: Final = 2 << 30
"""Largest bundle, in bytes."""

HEAD_LIMIT: Final = 256 << 10
"""Bytes before the pack."""
MAX_REFS: Final = 500
"""Refs that one bundle may name, and commits that it may build upon."""
_FORMAT: Final = "@object-format="
_PREREQUISITE: Final = re.compile(r"-([0-9a-f]{40,64})(?: .*)?")
_REF: Final = re.compile(r"([0-9a-f]{40,64}) (refs/[!-~]{1,300})")


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
