"""Parts of Markdown documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def written_by(source: str) -> str:
    """Return the note at the beginning of a generated document; ``source`` is what to change instead of it."""
    return f"<!-- Written by `make docs`. Change {source}, not this file. -->"


def join_sections(sections: Iterable[str]) -> str:
    """Return a document of these sections."""
    return "\n\n".join(sections) + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a ``|`` in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
