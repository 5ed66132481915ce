"""Objects on their way from one repository to another, as a pack."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

from executors_app.repositories import bare
from executors_app.repositories.git import LONG, Git

_PACK: Final = ("pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet")
LOOSE_UP_TO: Final = 100
"""Objects of a pack that become files of their own, as with a fetch: many small packs make a repository slow."""


def write(git: Git, into: IO[bytes], wanted: Iterable[str], known: Iterable[str] = (), *, thin: bool = False) -> None:
    """Append a pack of all that ``wanted`` reaches and ``known`` does not; GitFailed.

    ``known`` must be here. A thin pack leaves out what its differences are from.
    """
    words = (*_PACK, "--thin") if thin else _PACK
    git.write(into, *words, stdin=bare.revisions(wanted, known))


@contextmanager
def packed(git: Git, wanted: Iterable[str], known: Iterable[str]) -> Iterator[IO[bytes]]:
    """The same, thin, in a file that is gone afterwards."""
    with tempfile.TemporaryFile() as file:
        write(git, file, wanted, known, thin=True)
        yield file


def unpack(pack: IO[bytes], git: Git, hold: Sequence[int]) -> None:
    """Take a pack of ours in; GitFailed."""
    count = int.from_bytes(os.pread(pack.fileno(), 12, 0)[8:12], "big")
    if count == 0:
        return
    words = ("unpack-objects", "-q") if count < LOOSE_UP_TO else ("index-pack", "--stdin", "--fix-thin")
    os.lseek(pack.fileno(), 0, os.SEEK_SET)
    git.run(*words, stdin=pack, timeout=LONG, hold=hold)


def copy(source: Git, target: Git, wanted: Iterable[str], known: Iterable[str], *, hold: Sequence[int]) -> str:
    """Bring all that ``wanted`` reaches and ``known`` does not from one repository into another, as one pack.

    Each object is hashed again on arrival. Returns the pack's name. Raises GitFailed.
    """
    words = ("index-pack", "--stdin")
    said = source.pipe(_PACK, target, words, stdin=bare.revisions(wanted, known), hold=hold)
    return said.decode().split()[-1]
