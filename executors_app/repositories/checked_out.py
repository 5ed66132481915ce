"""What the HEADs of a repository say, read as data: which commit to begin from, and which branches are in use."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from executors_app import plain_files
from executors_app.repositories.bare import OBJECT_ID
from executors_app.repositories.layout import POINTER_LIMIT

_BRANCH: Final = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_WORKTREES: Final = 10_000
_IN_USE: Final = ("HEAD", "rebase-merge/head-name", "rebase-apply/head-name")
"""While a branch is being rebased HEAD names none, and git keeps the branch's name elsewhere."""


def head(directory: Path) -> str:
    """What a git directory's HEAD names: a ref or a commit; empty where it names none."""
    return _named(directory / "HEAD")


def branches(common: Path) -> set[str]:
    """The refs of all branches that are checked out somewhere, as the repository knows it."""
    places = [common, *(Path(entry.path) for entry in plain_files.entries(common / "worktrees", _WORKTREES))]
    named = {_named(place / name) for place in places for name in _IN_USE}
    return {name for name in named if name.startswith("refs/")}


def _named(path: Path) -> str:
    if path.is_symlink():  # as git wrote HEAD long ago
        said = os.fsdecode(path.readlink())
    else:
        said = os.fsdecode(plain_files.read_file(path, POINTER_LIMIT) or b"").strip().removeprefix("ref:").strip()
    return said if _BRANCH.fullmatch(said) or OBJECT_ID.fullmatch(said) else ""
