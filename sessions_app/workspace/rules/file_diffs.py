"""Compare two versions of a file line by line, and show the changes with a few lines around them.

Whole texts are compared, with their line ends. Only what is equal is left out of the lines that are shown, so that no
change hides behind a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

CONTEXT_LINES: Final = 3
"""Equal lines that are shown before and after a change."""
CONTEXT_CHARS: Final = 200
"""Equal characters that are shown before and after a change within a long line."""
COMPARED_LINES: Final = 2_000
"""Maximum number of lines between two anchors that are compared with each other, because that takes quadratic time."""
NO_FINAL_LINE_END: Final = "\\ No newline at end of file"

ShownLine = tuple[str, str]
"""Kind (``added``, ``gone``, ``hunk``, or empty for an equal line) and text."""
_Block = tuple[int, int, int, int]
"""Start and end in the old lines, start and end in the new lines."""


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The difference of two versions of a file."""

    lines: Sequence[ShownLine]
    added: int
    """Number of added lines."""
    gone: int
    """Number of removed lines."""


def compare_files(old: str, new: str) -> FileDiff:
    """Compare two texts, including their line ends; equal texts have no lines."""
    before, after = _split_lines(old), _split_lines(new)
    changes = list(_join_neighbours(_changed_blocks(before, after)))
    lines = [line for hunk in _group(changes) for line in _hunk_lines(hunk, before, after)]
    added = sum(end - start for _, _, start, end in changes)
    gone = sum(end - start for start, end, _, _ in changes)
    return FileDiff(lines, added, gone)


def _split_lines(text: str) -> list[str]:
    """Split at line feeds alone. Other separators are part of a line, so that a change of one of them is a change."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    if lines[-1]:
        return [*ended, lines[-1]]
    return ended


def _changed_blocks(before: Sequence[str], after: Sequence[str]) -> Iterator[_Block]:
    """Yield the blocks of lines that differ, in order."""
    start, shortest = 0, min(len(before), len(after))
    while start < shortest and before[start] == after[start]:
        start += 1
    end = 0
    while end < shortest - start and before[-1 - end] == after[-1 - end]:
        end += 1
    middle = (start, len(before) - end, start, len(after) - end)
    old_count, new_count = middle[1] - middle[0], middle[3] - middle[2]
    if max(old_count, new_count) <= COMPARED_LINES:
        yield from _compare_block(before, after, middle)
        return
    old_at, new_at = middle[0], middle[2]
    for old_anchor, new_anchor in [*_anchors(before, after, middle), (middle[1], middle[3])]:
        block = (old_at, old_anchor, new_at, new_anchor)
        if max(old_anchor - old_at, new_anchor - new_at) <= COMPARED_LINES:
            yield from _compare_block(before, after, block)
        else:
            yield block
        old_at, new_at = old_anchor + 1, new_anchor + 1


def _compare_block(before: Sequence[str], after: Sequence[str], block: _Block) -> Iterator[_Block]:
    old_start, old_end, new_start, new_end = block
    if old_start == old_end and new_start == new_end:
        return
    if old_start == old_end or new_start == new_end:
        yield block
        return
    matcher = SequenceMatcher(None, before[old_start:old_end], after[new_start:new_end])
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind != "equal":
            yield old_start + old_from, old_start + old_to, new_start + new_from, new_start + new_to


def _anchors(before: Sequence[str], after: Sequence[str], block: _Block) -> list[tuple[int, int]]:
    """Return the longest sequence of equal lines, in both orders, that occur once in each version (patience diff)."""
    old_start, old_end, new_start, new_end = block
    old_counts, new_counts = Counter(before[old_start:old_end]), Counter(after[new_start:new_end])
    places = {line: at for at, line in enumerate(after[new_start:new_end], start=new_start) if new_counts[line] == 1}
    pairs = [
        (at, places[line])
        for at, line in enumerate(before[old_start:old_end], start=old_start)
        if old_counts[line] == 1 and line in places
    ]
    ends: list[int] = []
    """The smallest place in the new version at which a sequence of each length ends."""
    chosen: list[int] = []
    """The pair at the end of each of these sequences."""
    previous: list[int | None] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        if length:
            previous.append(chosen[length - 1])
        else:
            previous.append(None)
        ends[length : length + 1] = [place]
        chosen[length : length + 1] = [number]
    found: list[tuple[int, int]] = []
    at = chosen[-1] if chosen else None
    while at is not None:
        found.append(pairs[at])
        at = previous[at]
    return found[::-1]


def _join_neighbours(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Join blocks without an equal line between them."""
    last: _Block | None = None
    for block in blocks:
        if last is not None and last[1] == block[0] and last[3] == block[2]:
            last = (last[0], block[1], last[2], block[3])
            continue
        if last is not None:
            yield last
        last = block
    if last is not None:
        yield last


def _group(changes: Sequence[_Block]) -> Iterator[list[_Block]]:
    """Group changes whose context overlaps."""
    group: list[_Block] = []
    for block in changes:
        if group and block[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _hunk_lines(changes: Sequence[_Block], before: Sequence[str], after: Sequence[str]) -> Iterator[ShownLine]:
    first, last = changes[0], changes[-1]
    lead = min(CONTEXT_LINES, first[0], first[2])
    trail = min(CONTEXT_LINES, len(before) - last[1])
    old_count, new_count = last[1] - first[0] + lead + trail, last[3] - first[2] + lead + trail
    old_line, new_line = first[0] - lead + bool(old_count), first[2] - lead + bool(new_count)
    yield "hunk", f"@@ -{old_line},{old_count} +{new_line},{new_count} @@"
    at = first[0] - lead
    for block in changes:
        yield from (("", f" {_without_end(line)}") for line in before[at : block[0]])
        yield from _change_lines(before[block[0] : block[1]], after[block[2] : block[3]])
        at = block[1]
    yield from (("", f" {_without_end(line)}") for line in before[at : at + trail])


def _change_lines(gone: Sequence[str], added: Sequence[str]) -> Iterator[ShownLine]:
    if len(gone) == len(added):
        pairs = [_around_change(old, new) for old, new in zip(gone, added, strict=True)]
        gone, added = [old for old, _ in pairs], [new for _, new in pairs]
    for kind, mark, lines in (("gone", "-", gone), ("added", "+", added)):
        for line in lines:
            yield kind, f"{mark}{_without_end(line).replace(chr(13), chr(0x240D))}"
            if not line.endswith("\n"):
                yield kind, NO_FINAL_LINE_END


def _without_end(line: str) -> str:
    return line.removesuffix("\n")


def _around_change(old: str, new: str) -> tuple[str, str]:
    """Leave out what is equal at the beginning and the end of two long lines."""
    if max(len(old), len(new)) <= 4 * CONTEXT_CHARS:
        return old, new
    shortest = min(len(old), len(new))
    lead = _common_length(old, new, shortest)
    trail = _common_length(old[::-1], new[::-1], shortest - lead)
    return _without_equal(old, lead, trail), _without_equal(new, lead, trail)


def _common_length(one: str, other: str, limit: int) -> int:
    """Return how many of the first ``limit`` characters are equal, by halving: slices are compared at C speed."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _without_equal(line: str, lead: int, trail: int) -> str:
    skipped_lead, skipped_trail = max(0, lead - CONTEXT_CHARS), max(0, trail - CONTEXT_CHARS)
    shown = line[skipped_lead : len(line) - skipped_trail]
    if skipped_lead:
        shown = f"⟦{skipped_lead} equal characters⟧{shown}"
    if skipped_trail:
        shown = f"{shown}⟦{skipped_trail} equal characters⟧"
        if line.endswith("\n"):
            shown += "\n"
    return shown
