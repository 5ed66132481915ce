"""Archives of what an agentctl left, which an agent may have written."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import IO, Literal

import pytest

from executors_app.runtimes.fetched_state import unpack_state

SEGMENT = f"journal/{1:020}.jsonl"


class CountingFile(io.BytesIO):
    """An archive that remembers the largest part that was read of it at once."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, and remember the size."""
        assert size is not None
        assert size >= 0
        self.largest = max(self.largest, size)
        return super().read(size)


def packed(*entries: tuple[str, bytes, int, bytes], form: Literal[0, 1, 2] = tarfile.PAX_FORMAT) -> CountingFile:
    """Return an archive of entries: name, type, size that the header claims, and content."""
    content = b""
    for name, kind, size, data in entries:
        entry = tarfile.TarInfo(name)
        entry.type, entry.size, entry.mtime = kind, size, 1.5
        content += entry.tobuf(form) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    return CountingFile(content + bytes(2 * tarfile.BLOCKSIZE))


def unpacked(archive: IO[bytes], into: Path) -> dict[str, bytes]:
    unpack_state(archive, into)
    return {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_files_of_agentctl_are_read_from_every_kind_of_archive(tmp_path: Path, form: Literal[0, 1, 2]) -> None:
    entries = ((SEGMENT, tarfile.REGTYPE, 3, b"one"), ("token.json", tarfile.REGTYPE, 2, b"{}"))
    assert unpacked(packed(*entries, form=form), tmp_path) == {SEGMENT: b"one", "token.json": b"{}"}


OTHERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE),
)
"""Kinds of headers that describe other entries, or more than one part."""


@pytest.mark.parametrize("kind", OTHERS)
def test_header_of_any_claimed_size_is_never_read(tmp_path: Path, kind: bytes) -> None:
    archive = packed((SEGMENT, kind, 1 << 30, b""), form=tarfile.GNU_FORMAT)
    assert unpacked(archive, tmp_path) == {}
    assert archive.largest == tarfile.BLOCKSIZE


@pytest.mark.parametrize("size", [1 << 30, 1 << 62, 1 << 80])
def test_file_that_is_shorter_than_it_claims_is_refused(tmp_path: Path, size: int) -> None:
    archive = packed((SEGMENT, tarfile.REGTYPE, size, b"one"), form=tarfile.GNU_FORMAT)
    with pytest.raises(ValueError):
        unpack_state(archive, tmp_path)
    assert archive.largest <= 1 << 20
