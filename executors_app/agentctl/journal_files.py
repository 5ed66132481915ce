"""The journal's form on disk, and how to read it when its agentctl is gone.

A journal is a directory of segments, each named by the seq of its first line, a ``meta.json``
``{"epoch", "boot_id"}`` and, below ``aside/<epoch>/``, what earlier epochs left. A line counts
once its newline is written; whatever stands behind the last good line of the last segment is a
torn tail. Nothing here writes, so that a reader never harms a live agentctl.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.journal_lines import sanitised

META: Final = "meta.json"
ASIDE: Final = "aside"

UNREADABLE: Final = "unreadable"
"""Kind of what stands for a line of a stream that cannot be read; ``text`` is its beginning."""
NUL: Final = b"\\u0000"

_MANY_BRACKETS: Final = 200
_LAST_TS: Final = 253_402_300_800
"""The end of the year 9999."""
_SEGMENT: Final = re.compile(r"(\d{20})\.jsonl")
_EPOCH: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


def journal_directory(state_dir: Path) -> Path:
    """Where the journal of a state directory lies."""
    return state_dir / "journal"


def epoch_of(directory: Path) -> str | None:
    """The journal's present epoch; None where there is no readable journal."""
    epoch = meta_of(directory).get("epoch")
    return epoch if isinstance(epoch, str) and _EPOCH.fullmatch(epoch) else None


def meta_of(directory: Path) -> dict[str, Any]:
    """The content of ``meta.json``; empty where it is missing or damaged."""
    try:
        meta = orjson.loads((directory / META).read_bytes())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def read_lines(directory: Path, after: int = 0, epoch: str | None = None) -> Iterator[dict[str, Any]]:
    """Every whole line behind the cursor ``(epoch, after)``, in order, without changing anything.

    Where ``epoch`` is no longer the journal's, first come its own remaining lines (if they were set aside), then all
    of the present epoch: each line names its epoch. A torn tail and damaged lines are left out.
    """
    if epoch is not None and epoch != epoch_of(directory):
        if _EPOCH.fullmatch(epoch):
            yield from _lines(directory / ASIDE / epoch, after)
        after = 0
    yield from _lines(directory, after)


def _lines(directory: Path, after: int) -> Iterator[dict[str, Any]]:
    found = segments(directory)
    for number, (_, path) in enumerate(found):
        following = found[number + 1][0] if number + 1 < len(found) else sys.maxsize
        if following <= after + 1:
            continue
        with path.open("rb") as file:
            for raw in file:
                line = parse_line(raw)
                # what a failed sync left behind the next segment's first line was written again there
                if line is not None and after < line["seq"] < following:
                    yield line


def segments(directory: Path) -> list[tuple[int, Path]]:
    """(first seq, path) of each segment, oldest first."""
    if not directory.is_dir():
        return []
    named = ((_SEGMENT.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in named if match)


def segment_path(directory: Path, first_seq: int) -> Path:
    """The name of the segment that begins with ``first_seq``."""
    return directory / f"{first_seq:020d}.jsonl"


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """The line, free of what a database cannot store, or None where it is torn or damaged."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = orjson.loads(raw)
        if NUL in raw:
            line = sanitised(line)
        if raw.count(b"[") + raw.count(b"{") > _MANY_BRACKETS:
            orjson.dumps(line)  # refuses what is too deep for other readers
    except (ValueError, TypeError):
        return None
    return line if is_line(line) else None


def is_line(value: Any) -> bool:
    """Whether a value has the header that every line of a journal has."""
    match value:
        case {"seq": int(seq), "epoch": str(), "ts": int() | float() as ts, "kind": str(kind)}:
            return 0 < seq < 2**63 and seq is not True and 0 <= ts < _LAST_TS and kind != UNREADABLE
    return False


@dataclass(frozen=True, slots=True)
class Survey:
    """How far one segment is good."""

    next_seq: int
    """The seq that would follow its last good line."""
    end: int
    """The offset behind its last good line."""
    damaged: bool
    """A whole line stands behind a bad one: more than a torn tail."""


def survey(
    path: Path, first_seq: int, epoch: str, stop_at: int | None, seen: Callable[[dict[str, Any], int], None]
) -> Survey:
    """Read one segment from its start; ``seen(line, offset)`` is told of each good line.

    ``stop_at`` is the first seq of the next segment: what a failed sync left here behind it was written again there.
    """
    wanted, end = first_seq, 0
    with path.open("rb") as file:
        for raw in file:
            if wanted == stop_at:
                break
            line = parse_line(raw)
            if line is None or line["seq"] != wanted or line.get("epoch") != epoch:
                behind = any(parse_line(other) is not None for other in chain((raw,), file))
                return Survey(wanted, end, damaged=behind)
            seen(line, end)
            wanted, end = wanted + 1, end + len(raw)
    return Survey(wanted, end, damaged=False)
