"""Where the lines of a journal are on disk, and how any process reads them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.wire.exhaustion import raise_if_exhausted
from executors_app.wire.line_format import is_too_complex, parse_line

META_FILE: Final = "meta.json"
ASIDE: Final = "aside"
_SEGMENT: Final = re.compile(r"(\d{20})\.jsonl")
_EPOCH: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


def journal_directory(state_dir: Path) -> Path:
    """Return the journal's directory within a state directory."""
    return state_dir / "journal"


def read_epoch(directory: Path) -> str | None:
    """Return the journal's current epoch; None if there is no readable journal."""
    epoch = read_meta(directory).get("epoch")
    if isinstance(epoch, str) and _EPOCH.fullmatch(epoch):
        return epoch
    return None


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``; empty if it is missing or damaged."""
    try:
        meta = orjson.loads((directory / META_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise_if_exhausted(error)
        return {}
    if isinstance(meta, dict):
        return meta
    return {}


def read_lines(directory: Path, after: int = 0, epoch: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield every complete line after the cursor ``(epoch, after)``, in order; changes nothing.

    If ``epoch`` is no longer the journal's, its own remaining lines come first (if they were set aside), then all lines
    of the current epoch; each line names its epoch. A torn last line is skipped, and so are lines that are damaged
    or too complex.
    """
    if epoch is not None and epoch != read_epoch(directory):
        if _EPOCH.fullmatch(epoch):
            yield from _iter_lines(directory / ASIDE / epoch, after)
        after = 0
    yield from _iter_lines(directory, after)


def _iter_lines(directory: Path, after: int) -> Iterator[dict[str, Any]]:
    segments = list_segments(directory)
    next_starts = [first_seq for first_seq, _ in segments[1:]] + [sys.maxsize]
    for (_, path), following in zip(segments, next_starts, strict=False):
        if following <= after + 1:
            continue
        with path.open("rb") as file:
            for raw in file:
                if is_too_complex(raw):
                    continue
                line = parse_line(raw)
                # After a failed sync a segment may end with lines that the next segment repeats: skip them here.
                if line is not None and after < line["seq"] < following:
                    yield line


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """Return (first seq, path) of each segment, oldest first."""
    if not directory.is_dir():
        return []
    named = ((_SEGMENT.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in named if match)


def segment_path(directory: Path, first_seq: int) -> Path:
    """Return the path of the segment that begins with ``first_seq``."""
    return directory / f"{first_seq:020d}.jsonl"


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """How far one segment is readable."""

    next_seq: int
    """The seq after its last good line."""
    end: int
    """The offset after its last good line."""
    damaged: bool
    """Whether a complete line follows a bad one, which is more than a torn tail."""


def survey_segment(
    path: Path, first_seq: int, epoch: str, stop_at: int | None, seen: Callable[[dict[str, Any], int], None]
) -> SegmentSurvey:
    """Read one segment from its start and call ``seen(line, offset)`` with each good line.

    ``stop_at`` is the first seq of the next segment: lines from there on were written again after a failed sync.
    """
    wanted, end = first_seq, 0
    with path.open("rb") as file:
        for raw in file:
            if wanted == stop_at:
                break
            line = parse_line(raw)
            if line is None or line["seq"] != wanted or line.get("epoch") != epoch:
                followed = any(parse_line(other) is not None for other in chain((raw,), file))
                return SegmentSurvey(wanted, end, damaged=followed)
            seen(line, end)
            wanted, end = wanted + 1, end + len(raw)
    return SegmentSurvey(wanted, end, damaged=False)
