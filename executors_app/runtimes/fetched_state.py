"""Read what an agentctl that has ended left on another disk, as if it were on this one."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from executors_app.machine.storage import ExecutionStorage
from executors_app.runtimes import run_blocking
from executors_app.wire import journal_files
from executors_app.wire.executions import ExecutionFacts

T = TypeVar("T")

_MOST_FILES: Final = 10_000
_LONGEST: Final = 1 << 40
"""Bytes that the header of a file may claim."""
_PART: Final = 1 << 20
"""Bytes that are copied at once."""
_FILES: Final = re.compile(
    rf"token\.json|journal/(?:{journal_files.ASIDE}/[0-9A-Za-z_-]{{1,64}}/)?(?:{journal_files.META_FILE}|\d{{20}}\.jsonl)"
)


def read_fetched_state(
    execution: ExecutionFacts, fetch: Callable[[Path], Coroutine[Any, Any, bool]], read: Callable[[ExecutionStorage], T]
) -> T | None:
    """Return what ``read`` finds in the state that ``fetch`` has copied into a directory; None if it found none.

    Blocks, and raises what the two raise.
    """
    with tempfile.TemporaryDirectory(prefix="kandev-left-") as directory:
        disk = ExecutionStorage(Path(directory))
        if not run_blocking(fetch(disk.state_directory_of(execution.id).path)):
            return None
        return read(disk)


def unpack_state(packed: IO[bytes], into: Path) -> None:
    """Write only plain files with names that agentctl uses; the first of each name counts.

    An agent may have written the archive. Only the headers of single files are read, each of 512 bytes: those of long
    names, further attributes and sparse files could claim any size, and agentctl's files need none. Raises
    tarfile.TarError, ValueError or OSError.
    """
    for number in range(_MOST_FILES + 1):
        header = packed.read(tarfile.BLOCKSIZE)
        if not header.strip(b"\0"):
            return
        if number == _MOST_FILES:
            raise ValueError(f"it contains more than {_MOST_FILES} files")
        entry = tarfile.TarInfo.frombuf(header, tarfile.ENCODING, "surrogateescape")
        if not 0 <= entry.size < _LONGEST:
            raise ValueError("a file has no valid size")
        start = packed.tell()
        if entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and _FILES.fullmatch(entry.name):
            _write(packed, entry.size, into / entry.name)
        packed.seek(start + -(-entry.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)


def _write(packed: IO[bytes], size: int, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while size and (part := packed.read(min(size, _PART))):
            file.write(part)
            size -= len(part)
    if size:
        raise ValueError("it is incomplete")
