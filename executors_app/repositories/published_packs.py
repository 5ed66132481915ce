"""The packs that a workspace has added to the team's repository, merged so that they stay few.

Every publication adds a pack, and a repository with thousands of small packs is slow. A new pack therefore takes the
place of the workspace's earlier ones that are no larger than itself: n publications leave about log2(n) packs. We keep
the index of each pack in the archive, because an index in the team's repository could name anything.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.repositories import bare
from executors_app.repositories.git import CHECK, Git, GitFailed
from executors_app.repositories.transfer import Pack, PackSize
from executors_app.wire.errors import PublicationRefused

_FOLDER: Final = "published"

PUBLISHED_BYTES: Final = 4 << 30
"""Bytes of packs that one workspace may add to the team's repository."""
PUBLISHED_INFLATED: Final = 32 << 30
"""Bytes of objects, unpacked, that one workspace may add to the team's repository."""
PUBLISHED_OBJECTS: Final = 5_000_000
"""Objects that one workspace may add to the team's repository."""


@dataclass(frozen=True, slots=True)
class MergedPack:
    """A pack to add, and the names of packs whose objects are all in it."""

    pack: Pack
    replaces: tuple[str, ...] = ()


class PublishedPacks:
    """The indexes of one workspace's published packs, in a directory of its archive."""

    def __init__(self, archive: Path, git: Git):
        self._folder = archive / _FOLDER
        self._git = git

    def merge(self, new: Pack, present: Collection[str], hold: Sequence[int]) -> MergedPack:
        """Return a pack with the objects of ``new`` and of earlier packs that are no larger, next to ``new``.

        ``present`` are the names of packs in the team's repository that may be replaced.
        """
        if present:
            # Others are gone, because the team has collected garbage, or somebody wants to keep them.
            self.forget({path.with_suffix(".pack").name for path in self._folder.glob("*.idx")} - set(present))
        smaller = self._smaller_than(new, present)
        if not smaller:
            return MergedPack(new)
        try:
            names = [self._object_names(index) for index in (new.index, *smaller)]
            words = ("pack-objects", "--delta-base-offset", "--quiet", str(new.path.parent / "pack"))
            pack_name = self._git.run(*words, stdin=b"".join(names), bounds=CHECK, hold=hold).decode().strip()
        except GitFailed:
            # The archive has dropped objects that were published before: the new ones can still be published alone.
            return MergedPack(new)
        pack = Pack(new.path.with_name(f"pack-{pack_name}.pack"), PackSize(0, 0))
        replaced = {index.with_suffix(".pack").name for index in smaller} - {pack.path.name}
        return MergedPack(pack, tuple(sorted(replaced)))

    def record(self, pack: Pack) -> None:
        """Keep the index of a pack that was added. The caller forgets what it replaces after removing that."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        draft = self._folder / f"{pack.index.name}.draft"
        shutil.copyfile(pack.index, draft)
        draft.rename(self._folder / pack.index.name)

    def forget(self, names: Collection[str]) -> None:
        """Drop the indexes of packs that are no longer in the team's repository."""
        for name in names:
            (self._folder / name).with_suffix(".idx").unlink(missing_ok=True)

    def _smaller_than(self, new: Pack, present: Collection[str]) -> list[Path]:
        """Return the indexes of packs that a merged one shall contain, from the smallest on.

        An index has a fixed size for each object, so its bytes compare the numbers of objects.
        """
        indexes = [path for path in self._folder.glob("*.idx") if path.with_suffix(".pack").name in present]
        total, smaller = new.index.stat().st_size, []
        for index in sorted(indexes, key=lambda path: path.stat().st_size):
            if index.stat().st_size > total:
                break
            total += index.stat().st_size
            smaller.append(index)
        return smaller

    def _object_names(self, index: Path) -> bytes:
        with index.open("rb") as file:
            lines = self._git.run("show-index", stdin=file, bounds=CHECK).decode().splitlines()
        return bare.join_lines(line.split(" ")[1] for line in lines)


@dataclass(frozen=True, slots=True)
class Published:
    """What a workspace has added to the team's repository so far."""

    stored: int = 0
    """Bytes of packs."""
    inflated: int = 0
    """Bytes of objects, unpacked."""
    objects: int = 0

    def plus(self, pack: Pack) -> Published:
        """Return the sum with another pack."""
        return Published(
            self.stored + pack.stored, self.inflated + pack.size.inflated, self.objects + pack.size.objects
        )

    def check(self) -> None:
        """Raise PublicationRefused if this is more than a workspace may add."""
        for name, used, limit in (
            ("bytes", self.stored, PUBLISHED_BYTES),
            ("unpacked bytes", self.inflated, PUBLISHED_INFLATED),
            ("objects", self.objects, PUBLISHED_OBJECTS),
        ):
            if used > limit:
                raise PublicationRefused(
                    f"This workspace would have published {used} {name} into the team's repository, more than the "
                    f"{limit} that it may. Its work is kept in its archive; continue in a new session."
                )
