"""Read what an agentctl that has ended left on another disk, as if it were on this one."""

from __future__ import annotations

import re
import shutil
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

    An agent may have written the archive. Raises tarfile.TarError, ValueError or OSError.
    """
    # "r:" reads no compressed archive, which could unfold to any size.
    with tarfile.open(fileobj=packed, mode="r:") as archive:
        for number, entry in enumerate(archive):
            if number == _MOST_FILES:
                raise ValueError(f"it contains more than {_MOST_FILES} files")
            # A sparse file could claim a size far beyond the bytes that were sent.
            if not entry.isreg() or entry.issparse() or not _FILES.fullmatch(entry.name):
                continue
            source, target = archive.extractfile(entry), into / entry.name
            if source is None or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(source, file)
