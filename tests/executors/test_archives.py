"""Archives that an engine returns are unpacked as plain files, few and of their own size."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from executors_app.runtimes.containers import archives
from executors_app.runtimes.containers.engine import Engine
from executors_app.wire.errors import LaunchFailed

CLAIMED = 1 << 20
Entries = list[tuple[tarfile.TarInfo, bytes]]


class ArchiveEngine:
    """An engine that returns one archive for every path."""

    def __init__(self, packed: bytes):
        self._packed = packed

    def find_any(self, call: Callable[[Any], Any]) -> Any:
        return [self._packed], {}

    def ask(self, call: Callable[[Any], Any]) -> Any:
        return call(None)


def engine_with(entries: Entries) -> Engine:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return cast("Engine", ArchiveEngine(packed.getvalue()))


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def sparse_file() -> tuple[tarfile.TarInfo, bytes]:
    """Return a file of a few bytes that claims to be much larger, with a hole."""
    made = entry("sparse")
    names = {"major": "1", "minor": "0", "name": "sparse", "realsize": str(CLAIMED)}
    made.pax_headers = {f"GNU.sparse.{name}": value for name, value in names.items()}
    return made, f"1\n{CLAIMED}\n0\n".encode().ljust(512, b"\0")


def test_only_plain_files_and_directories_are_unpacked(tmp_path: Path) -> None:
    into = tmp_path / "into"
    entries = [
        (entry("state", tarfile.DIRTYPE), b""),
        (entry("state/link", tarfile.SYMTYPE, "/etc"), b""),
        (entry("state/hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (entry("state/pipe", tarfile.FIFOTYPE), b""),
        (entry("state/device", tarfile.CHRTYPE), b""),
        sparse_file(),
        (entry("state/file"), b"content"),
    ]
    assert archives.fetch_files(engine_with(entries), "container", "/state", into)
    assert {str(path.relative_to(into)) for path in into.rglob("*")} == {"state", "state/file"}
    assert (into / "state/file").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["/etc/kandev", "../outside", "state/../../outside"])
def test_file_outside_of_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed):
        archives.fetch_files(engine_with([(entry(name), b"x")]), "container", "/state", tmp_path / "into")
    assert not (tmp_path / "outside").exists()


def test_archive_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_FILES", 20)
    entries = [(entry(f"file{number}"), b"") for number in range(21)]
    with pytest.raises(LaunchFailed, match="too many files"):
        archives.fetch_files(engine_with(entries), "container", "/state", tmp_path)


def test_single_file_that_is_sparse_is_refused() -> None:
    into = io.BytesIO()
    with pytest.raises(LaunchFailed):
        archives.fetch_file(engine_with([sparse_file()]), "container", "/work.bundle", into)
    assert not into.getvalue()
    assert archives.read_small_file(engine_with([sparse_file()]), "container", "/token") is None
