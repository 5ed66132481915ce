"""Copy files into and out of containers (running or not) and their volumes, with owner and mode."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from executors_app.runtimes.containers.engine import Engine
from executors_app.wire.errors import LaunchFailed

_MAX_BYTES: Final = 4 << 30
"""Bytes of one archive that is fetched."""
_IN_MEMORY: Final = 8 << 20
_SMALL_FILE_LIMIT: Final = 1 << 20
_MOST_FILES: Final = 10_000
"""Files and directories of one archive that is fetched."""


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner of files in a container."""

    uid: int
    gid: int

    @classmethod
    def of(cls, user: str) -> FileOwner:
        """Parse ``UID:GID``."""
        uid, _, gid = user.partition(":")
        return cls(int(uid), int(gid))


def send_files(
    engine: Engine,
    container: str,
    directory: str,
    owner: FileOwner,
    files: Mapping[str, bytes | Path],
    *,
    owned: Collection[str] = (),
) -> None:
    """Write files into an existing directory. Blocks; raises EngineRefused, RuntimeUnavailable, OSError.

    ``owned`` are directories below it, which only the owner can access. Paths are relative.
    """
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name in owned:
                tar.addfile(_entry(name, owner, 0o700, tarfile.DIRTYPE))
            for name, content in files.items():
                _add(tar, _entry(name, owner, 0o600, tarfile.REGTYPE), content)
        packed.seek(0)
        engine.ask(lambda client: client.put_archive(container, directory, packed))


def _add(tar: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    entry.size = content.stat().st_size
    with content.open("rb") as file:
        tar.addfile(entry, file)


def _entry(name: str, owner: FileOwner, mode: int, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.uid, entry.gid, entry.mode, entry.type = owner.uid, owner.gid, mode, kind
    return entry


def read_small_file(engine: Engine, container: str, path: str) -> bytes | None:
    """Return a small file's content; None if there is none. Blocks; raises EngineRefused, RuntimeUnavailable."""
    with _fetched(engine, container, path) as packed:
        if packed is None:
            return None
        with tarfile.open(fileobj=packed, mode="r:") as tar:
            file = _first_file(tar)
            if file is not None:
                return file.read(_SMALL_FILE_LIMIT)
            return None


def fetch_files(engine: Engine, container: str, path: str, into: Path) -> bool:
    """Copy a file or a directory into ``into``, plain files only; False if there is none. Blocks."""
    with _fetched(engine, container, path) as packed:
        if packed is None:
            return False
        with tarfile.open(fileobj=packed, mode="r:") as tar:
            for number, entry in enumerate(tar):
                if number == _MOST_FILES:
                    raise LaunchFailed("The container has too many files to fetch.")
                _extract(tar, entry, into)
        return True


def _extract(tar: tarfile.TarFile, entry: tarfile.TarInfo, into: Path) -> None:
    """Write a regular file or a directory below ``into``, and nothing outside of it.

    By hand, because Python before 3.11.4 has no extraction filters.
    """
    target = into / entry.name
    if ".." in target.parts or not target.is_relative_to(into):
        raise LaunchFailed("The container sent a file with an unsafe name.")
    if entry.isdir():
        target.mkdir(parents=True, exist_ok=True)
    elif (content := _content_of(tar, entry)) is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _content_of(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes] | None:
    """Return the content of a regular file; None for anything else.

    A sparse file is none: it could claim a size far beyond the bytes that were sent.
    """
    if entry.isreg() and not entry.issparse():
        return tar.extractfile(entry)
    return None


def fetch_file(engine: Engine, container: str, path: str, into: IO[bytes]) -> None:
    """Copy one regular file into an open file. Blocks; raises LaunchFailed if there is none."""
    with _fetched(engine, container, path) as packed:
        if packed is not None:
            with tarfile.open(fileobj=packed, mode="r:") as tar:
                if (file := _first_file(tar)) is not None:
                    shutil.copyfileobj(file, into)
                    return
    raise LaunchFailed(f"The container has no file {path}.")


def _first_file(tar: tarfile.TarFile) -> IO[bytes] | None:
    """Return the content of an archive's first entry, if that is a regular file."""
    first = tar.next()
    if first is None:
        return None
    return _content_of(tar, first)


@contextmanager
def _fetched(engine: Engine, container: str, path: str) -> Iterator[IO[bytes] | None]:
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as packed:
        found = engine.find_any(lambda client: client.get_archive(container, path))
        if found is None:
            yield None
            return
        engine.ask(lambda client: _copy(found[0], packed))
        packed.seek(0)
        yield packed


def _copy(parts: Iterator[bytes], into: Any) -> None:
    size = 0
    for part in parts:
        size += len(part)
        if size > _MAX_BYTES:
            raise LaunchFailed("The container's files are too large to fetch.")
        into.write(part)
