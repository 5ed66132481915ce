"""The objects of a team's repository that workspaces borrow: ``<data>/repositories/<key>/``, mounted read-only.

It holds what the team's published refs reach, or reached once, and nothing of any workspace. No object is ever
removed: a workspace that borrows one has no copy, and nobody could ask all workspaces.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from executors_app.errors import RepositoryUnusable
from executors_app.repositories import bare, lfs, packs
from executors_app.repositories.git import LONG, Git, GitFailed
from executors_app.repositories.team import TeamRepository

PACKS: Final = 24
"""More packs than that are made fewer."""
_REFS_LIMIT: Final = 256 << 20


class ObjectStore:
    """One store; see ``of``."""

    def __init__(self, path: Path, repository: TeamRepository):
        self.path = path
        self.repository = repository

    @classmethod
    def of(cls, root: Path, repository: TeamRepository) -> ObjectStore:
        """The store of a repository below the data directory ``root``; made when it is first updated."""
        # The format too: a repository that was made anew in another one has nothing to do with the old objects.
        named = os.fsencode(repository.common) + b"\0" + repository.object_format.encode()
        return cls(root / "repositories" / hashlib.sha256(named).hexdigest()[:32], repository)

    @property
    def git(self) -> Git:
        """Git on the store."""
        return Git(self.path)

    @property
    def objects(self) -> Path:
        """What others borrow from."""
        return self.path / "objects"

    def refs(self) -> dict[str, str]:
        """The published refs as they were at the last update, and what they name; reads one file."""
        try:
            text = (self.path / "packed-refs").read_text()
        except FileNotFoundError:
            return {}
        return {name: commit for commit, _, name in (line.partition(" ") for line in text.splitlines())}

    def update(self) -> None:
        """Bring in what the repository has published since; RepositoryUnusable, GitFailed.

        Cheap where that is nothing. One at a time, whoever asks; a call that is killed is made good by the next.
        """
        if self._is_current(self.repository.published_refs()):
            return
        bare.make(self.path, self.repository.object_format, mode=0o755, shared="0644")
        # Beside the store and not in it: whoever may read a file can lock it.
        with bare.locked(self.path.with_name(f"{self.path.name}.lock"), seconds=LONG) as held:
            published = self.repository.published_refs()
            if not self._is_current(published):
                self._bring(published, held)
            self._provide_lfs()

    def _is_current(self, published: Mapping[str, str]) -> bool:
        return self.path.is_dir() and published == self.refs() and not lfs.wants(self.path, self.repository.common)

    def _bring(self, published: Mapping[str, str], held: int) -> None:
        _remove_drafts(self.objects)
        before, source = self.refs(), self.repository.git
        there = bare.types(source, {*published.values(), *before.values()})
        # A ref to nothing is the repository's own damage, and keeps nobody from the others.
        wanted = {name: commit for name, commit in published.items() if commit in there}
        new = set(wanted.values()) - set(before.values())
        if new:
            known = [commit for commit in set(before.values()) if there.get(commit) in {"commit", "tag"}]
            try:
                packs.copy(source, self.git, new, known, hold=(held,))
                # Objects are named by their contents on arrival, so one that lay under a false name is missing.
                walk = bare.revisions(new, set(before.values()))
                self.git.run("rev-list", "--objects", "--quiet", "--stdin", stdin=walk, timeout=LONG, hold=(held,))
            except GitFailed as error:
                raise RepositoryUnusable(
                    f"The objects of {self.repository.path} cannot be read ({error.message}). "
                    "Run git fsck in it to see what is wrong."
                ) from error
        self._write_refs(wanted)
        if len(list((self.objects / "pack").glob("*.pack"))) > PACKS:
            # By size, whatever the objects are reached by: nothing is left out.
            self.git.run("repack", "--geometric=2", "-d", "-n", "-q", timeout=LONG, hold=(held,))

    def _write_refs(self, wanted: Mapping[str, str]) -> None:
        """After the objects: what is named here is known to be here with all that it reaches."""
        draft = self.path / "packed-refs.draft"
        with draft.open("w") as file:
            file.writelines(f"{commit} {name}\n" for name, commit in sorted(wanted.items()))
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        draft.rename(self.path / "packed-refs")

    def _provide_lfs(self) -> None:
        lfs.provide(self.git, self.path, self.repository.common)


def _remove_drafts(objects: Path) -> None:
    """What gits that were killed have left half-written; nobody else writes while the store is locked."""
    for place in (objects / "pack", objects):
        for draft in place.glob("tmp_*"):
            draft.unlink(missing_ok=True)
