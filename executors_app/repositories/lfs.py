"""Large files of git-lfs: those that published commits point at are copied beside the objects, where git-lfs looks.

A pointer is a small text file in a commit; its contents lie in the repository's ``lfs/objects``. They are copied,
not linked: a link would be the team's own file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from executors_app.repositories import bare
from executors_app.repositories.git import LONG, Git

_POINTER: Final = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:[^\n]+\n)*?oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,15})\n"
)
_POINTER_SIZES: Final = range(100, 1024)
_LIST_LIMIT: Final = 1 << 30
_SCANNED: Final = "scanned"
_MISSING: Final = "missing"


def wants(store: Path, common: Path) -> bool:
    """Whether ``provide`` has anything to do although no ref has moved."""
    if not _is_used(common):
        return False
    return not (store / "lfs" / _SCANNED).exists() or any(_source(common, oid) for oid in _missing(store))


def provide(git: Git, store: Path, common: Path) -> None:
    """Copy what the store's commits point at, as far as the repository has it; OSError, GitFailed.

    What it has not is remembered, and copied once it is there.
    """
    if not _is_used(common):
        return
    folder = store / "lfs"
    folder.mkdir(mode=0o755, exist_ok=True)
    packs = {path.name for path in (store / "objects" / "pack").glob("*.idx")}
    scanned = folder / _SCANNED
    new = packs - set(scanned.read_text().split()) if scanned.exists() else packs
    found = _missing(store) | set(_pointers(git, store, new))
    _write(folder / _MISSING, (oid for oid in sorted(found) if not _copy(store, common, oid)))
    _write(scanned, sorted(packs))


def _is_used(common: Path) -> bool:
    return (common / "lfs" / "objects").is_dir()


def _missing(store: Path) -> set[str]:
    try:
        return set((store / "lfs" / _MISSING).read_text().split())
    except FileNotFoundError:
        return set()


def _pointers(git: Git, store: Path, packs: Iterable[str]) -> Iterator[str]:
    """Of the objects in some packs of the store."""
    small: list[str] = []
    for pack in packs:
        said = git.run("show-index", stdin=(store / "objects" / "pack" / pack).read_bytes(), limit=_LIST_LIMIT)
        names = bare.lines(line.split(" ")[1] for line in said.decode().splitlines())
        told = git.run(
            "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=names, limit=_LIST_LIMIT
        )
        small += [
            name
            for name, kind, size in (line.split(" ") for line in told.decode().splitlines())
            if kind == "blob" and int(size) in _POINTER_SIZES
        ]
    for start in range(0, len(small), 10_000):
        texts = git.run("cat-file", "--batch", stdin=bare.lines(small[start : start + 10_000]), timeout=LONG)
        yield from (found[1].decode() for found in _POINTER.finditer(texts))


def _place(root: Path, oid: str) -> Path:
    return root / "lfs" / "objects" / oid[:2] / oid[2:4] / oid


def _source(common: Path, oid: str) -> Path | None:
    """The contents as the repository has them; no links, which could lead anywhere."""
    path = _place(common, oid)
    way = (path, *list(path.parents)[:4])
    return path if path.is_file() and not any(step.is_symlink() for step in way) else None


def _copy(store: Path, common: Path, oid: str) -> bool:
    """Whether the store has the contents now."""
    target = _place(store, oid)
    if target.exists():
        return True
    source = _source(common, oid)
    if source is None:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in list(target.parents)[:4]:
        folder.chmod(0o755)
    with source.open("rb") as file, tempfile.NamedTemporaryFile(dir=store / "lfs", prefix="tmp_") as draft:
        shutil.copyfileobj(file, draft, 1 << 20)
        draft.seek(0)
        if hashlib.file_digest(draft, "sha256").hexdigest() != oid:
            return False
        os.fchmod(draft.fileno(), 0o444)
        os.fsync(draft.fileno())
        os.link(draft.name, target)
    return True


def _write(path: Path, words: Iterable[str]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{word}\n" for word in words))
    draft.chmod(0o644)
    draft.rename(path)
