"""Read the documents for the tests: texts, code blocks, links, headings and table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.services import ROOT

DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|<(?:img|a)\b[^>]*?(?:src|href)=\"(?P<other>[^\"]+)\"")


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, the words after it, and its text."""

    document: Path
    language: str
    words: tuple[str, ...]
    text: str


def documents() -> list[Path]:
    """Return every page, including those beside the README."""
    return [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]


@cache
def text_of(name: str) -> str:
    """Return the text of a page, by its path below ``docs/`` or beside the README."""
    return next(path for path in documents() if path in (DOCS / name, ROOT / name)).read_text(encoding="utf-8")


def snippets(path: Path) -> list[Snippet]:
    """Return the fenced blocks of a page in order."""
    found = []
    for block in _FENCE.finditer(path.read_text(encoding="utf-8")):
        language, *words = block["info"].split() or [""]
        found.append(Snippet(path, language, tuple(words), block["text"]))
    return found


def links(path: Path) -> Iterator[str]:
    """Yield the links of a page within the project, except those in fenced blocks."""
    for link in _LINK.finditer(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        target = link["target"] or link["other"]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """Return the headings of a page as link anchors."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(name: str, section: str = "") -> dict[str, str]:
    """Return the table rows of a page, or of one section, by the word in the first cell."""
    text = text_of(name)
    if section:
        text = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    body = re.sub(r"^\|.*\n(?=\| ---)", "", text, flags=re.MULTILINE)
    return {row[1]: row[2] for row in re.finditer(r"^\| `?([\w.]+)`? \|(.*)$", body, re.MULTILINE)}
