"""The seed of a workspace: what a sandbox makes its repository of, or brings one up to date with.

One line of JSON, a line end, and the bytes of a pack (possibly none):

``{"version": 1, "branch", "refs": {name: commit}, "objects": [paths of stores inside the sandbox], "complete": bool,
"object_format", "identity": {"name", "email"}, "remotes": {name: url}, "exclude": text, "hooks": {name: base64}}``

``complete``: refs, pack and the borrowed stores suffice to make the repository anew.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.repositories import bare, packs
from executors_app.repositories.carried import Carried
from executors_app.repositories.git import Git

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Seed:
    """What a seed is made of."""

    git: Git
    """The archive's."""
    own: Mapping[str, str]
    """The workspace's refs."""
    branch: str
    base: str
    published: Mapping[str, str]
    object_format: str
    carried: Carried

    def write(self, into: Path, borrow: Sequence[str], *, whole: bool) -> None:
        """Write the file; ``whole``: with the pack. Raises GitFailed, OSError."""
        refs = {**(self.published if borrow else self._base()), **self.own}
        head = orjson.dumps({"version": VERSION, "branch": self.branch, **self._said(refs, borrow), "complete": whole})
        with into.open("wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(head + b"\n")
            file.flush()
            if whole:
                # What the store has, as far as its refs still name it; the rest is sent twice, and does no harm.
                known = bare.types(self.git, self.published.values()) if borrow else {}
                commits = [commit for commit, kind in known.items() if kind == "commit"]
                packs.write(self.git, file, refs.values(), commits)

    def _base(self) -> dict[str, str]:
        names = (f"refs/heads/{self.base}", f"refs/remotes/origin/{self.base}", f"refs/tags/{self.base}")
        return {name: self.published[name] for name in names if name in self.published}

    def _said(self, refs: Mapping[str, str], borrow: Sequence[str]) -> dict[str, Any]:
        carried = self.carried
        return {
            "refs": dict(refs),
            "objects": list(borrow),
            "object_format": self.object_format,
            "identity": dict(carried.identity),
            "remotes": dict(carried.remotes),
            "exclude": carried.exclude,
            "hooks": {name: base64.b64encode(text).decode("ascii") for name, text in carried.hooks.items()},
        }
