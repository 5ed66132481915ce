"""The documents as the tests read them: texts, code blocks, links, headings, rows of tables."""

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
    """A fenced block: its language, the words behind it, its text."""

    document: Path
    language: str
    words: tuple[str, ...]
    text: str


def documents() -> list[Path]:
    """Every page, those beside the README among them."""
    return [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted(DOCS.glob("*.md"))]


@cache
def text_of(name: str) -> str:
    """A page of ``docs/``, or the README."""
    return next(path for path in documents() if path.name == name).read_text(encoding="utf-8")


def snippets(path: Path) -> list[Snippet]:
    """The fenced blocks of a page, in order."""
    found = []
    for block in _FENCE.finditer(path.read_text(encoding="utf-8")):
        language, *words = block["info"].split() or [""]
        found.append(Snippet(path, language, tuple(words), block["text"]))
    return found


def links(path: Path) -> Iterator[str]:
    """What a page links to within the project, outside of its fenced blocks."""
    for link in _LINK.finditer(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        target = link["target"] or link["other"]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(name: str, section: str = "") -> dict[str, str]:
    """The rows of a page's tables, or of one section's, by the word that the first cell holds."""
    text = text_of(name)
    if section:
        text = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    body = re.sub(r"^\|.*\n(?=\| ---)", "", text, flags=re.MULTILINE)
    return {row[1]: row[2] for row in re.finditer(r"^\| `?([\w.]+)`? \|(.*)$", body, re.MULTILINE)}
