"""What the index of a workspace hides from ``git status``: flagged files and submodules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from executors_app.machine.git.submodules import Submodule

_SKIP_WORKTREE: Final = b"S"
_GITLINK: Final = b"160000"
_FIELDS_BEFORE_PATH: Final = {b"?": 1, b"1": 8, b"u": 10}


@dataclass(frozen=True, slots=True)
class IndexListing:
    """What an index says about files beyond their content."""

    assumed_unchanged: Sequence[bytes] = ()
    """Files that git is told not to examine."""
    not_checked_out: Sequence[bytes] = ()
    """Files that need not be in the working tree (``skip-worktree``)."""
    submodules: Sequence[Submodule] = ()


def path_of_entry(entry: bytes) -> bytes:
    """Return the path in an entry of ``git status --porcelain=v2 --no-renames``."""
    return entry.split(b" ", _FIELDS_BEFORE_PATH[entry[:1]])[-1]


def parse_index_listing(listed: bytes) -> IndexListing:
    """Parse ``git ls-files -z -v --stage``: ``TAG MODE OBJECT STAGE<tab>PATH``."""
    assumed_unchanged, not_checked_out, submodules = [], [], []
    for entry in listed.split(b"\0")[:-1]:
        about, _, path = entry.partition(b"\t")
        tag, mode, commit, _ = about.split(b" ", 3)
        if mode == _GITLINK:
            submodules.append(Submodule(path, commit.decode("ascii", "replace")))
        elif tag.upper() == _SKIP_WORKTREE:
            not_checked_out.append(path)
        elif tag.islower():
            assumed_unchanged.append(path)
    return IndexListing(assumed_unchanged, not_checked_out, submodules)
