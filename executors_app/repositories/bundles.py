"""Bundles: a few lines that name refs, and a pack. Written here, and read here without trusting a byte.

The format is git's own, so ``git clone`` and ``git fetch`` read what is written here. One thing is taken beyond
it: a bundle whose refs all name commits that the reader has may have no pack at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from executors_app.errors import BundleRefused
from executors_app.repositories import bare, packs
from executors_app.repositories.git import Git

HEAD_LIMIT: Final = 256 << 10
"""Bytes before the pack."""
REFS: Final = 500
"""Refs that one bundle may name, and commits that it may build upon."""
OBJECTS: Final = 2_000_000
"""Objects of one bundle."""
_FORMAT: Final = "@object-format="
_PREREQUISITE: Final = re.compile(r"-([0-9a-f]{40,64})(?: .*)?")
_REF: Final = re.compile(r"([0-9a-f]{40,64}) (refs/[!-~]{1,300})")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the beginning of a bundle says."""

    object_format: str
    refs: Mapping[str, str]
    prerequisites: frozenset[str]
    """Commits that the reader has to have."""
    objects: int
    """Objects of the pack, by its own account."""
    offset: int
    """Where the pack begins, in bytes."""


def parse(file: IO[bytes]) -> Bundle:
    """Read the beginning of a bundle; BundleRefused."""
    head = os.pread(file.fileno(), HEAD_LIMIT, 0)
    text, end, _ = head.partition(b"\n\n")
    if not end:
        raise BundleRefused("This is not a bundle, or names too many refs.")
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
        if first != "# v3 git bundle" or not capability.startswith(_FORMAT) or object_format not in bare.FORMATS:
            raise BundleRefused("The bundle asks for something that is not supported.")
    offset = len(text) + len(end)
    refs, prerequisites = _lines(rest, bare.FORMATS[object_format])
    return Bundle(object_format, refs, prerequisites, _count(file, offset), offset)


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
            raise BundleRefused("The bundle names commits of another format.")
    if len(refs) > REFS or len(prerequisites) > REFS:
        raise BundleRefused(f"The bundle names more than {REFS} refs.")
    return refs, frozenset(prerequisites)


def _count(file: IO[bytes], offset: int) -> int:
    head = os.pread(file.fileno(), 12, offset)
    if not head:
        return 0
    if len(head) < 12 or head[:4] != b"PACK" or int.from_bytes(head[4:8], "big") not in {2, 3}:
        raise BundleRefused("The bundle has no pack where one should be.")
    count = int.from_bytes(head[8:], "big")
    if count > OBJECTS:
        raise BundleRefused(f"The bundle has more than {OBJECTS} objects.")
    return count


def write(git: Git, into: Path, refs: Mapping[str, str], without: Iterable[str], object_format: str) -> None:
    """Bundle refs with all that they reach and ``without`` does not (commits that are here); GitFailed, OSError."""
    known = sorted(set(without))
    first = ["# v2 git bundle"] if object_format == "sha1" else ["# v3 git bundle", f"{_FORMAT}{object_format}"]
    named = [f"{commit} {name}" for name, commit in sorted(refs.items())]
    text = "\n".join([*first, *(f"-{commit} " for commit in known), *named, "", ""])
    with into.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text.encode())
        file.flush()
        packs.write(git, file, refs.values(), known, thin=True)
