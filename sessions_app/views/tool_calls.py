"""A tool call as its template shows it: what was asked, what came of it, and what it changed in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import unified_diff
from itertools import islice
from typing import Any, Final

from sessions_app.domain.plain_text import visible
from sessions_app.views.wording import tool_word

TEXT_LIMIT: Final = 20_000
"""Characters of a tool's input or output that are shown."""
DIFF_LINES: Final = 2_000
"""Lines of a file of which the differences are looked for."""
_KINDS: Final = {"+": "added", "-": "gone", "@": "hunk"}


def tool_call(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Title, word of its status, places, input, outputs and diffs; all texts as they may be shown."""
    outputs = [_short(text) for text in _outputs(payload) if text]
    return {
        "title": visible(str(payload.get("title") or payload.get("tool_call_id") or "Tool call")),
        "word": tool_word(visible(str(payload.get("status") or ""))[:40]),
        "places": [visible(str(place.get("path") or "")) for place in dicts(payload.get("locations"))],
        "input": _short(_as_text(payload.get("raw_input"))),
        "outputs": outputs,
        "diffs": [_diff(part) for part in dicts(payload.get("content")) if part.get("type") == "diff"],
    }


def dicts(value: Any) -> Iterable[dict[str, Any]]:
    """Whatever an agent sent as a list of objects, without what is none."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _outputs(payload: Mapping[str, Any]) -> list[str]:
    texts = [_part_text(part) for part in dicts(payload.get("content"))]
    return texts if any(texts) else [_as_text(payload.get("raw_output"))]


def _part_text(part: dict[str, Any]) -> str:
    content = part.get("content")
    inner = content if isinstance(content, dict) else part
    return str(inner["text"]) if isinstance(inner.get("text"), str) else ""


def _diff(part: Mapping[str, Any]) -> dict[str, Any]:
    """One file: ``{path, is_new, added, gone, lines: [(kind, text)]}``."""
    old, new = (_short(_as_text(_either(part, *names))) for names in (("oldText", "old_text"), ("newText", "new_text")))
    lines = list(_lines(old, new))
    kinds = [kind for kind, _ in lines]
    return {
        "path": visible(str(part.get("path") or "")),
        "is_new": not old,
        "added": kinds.count("added"),
        "gone": kinds.count("gone"),
        "lines": lines,
    }


def _either(part: Mapping[str, Any], first: str, second: str) -> Any:
    return part.get(first) or part.get(second)


def _lines(old: str, new: str) -> Iterator[tuple[str, str]]:
    """The lines of a unified diff without its head, each with its kind."""
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > DIFF_LINES:  # looking for what is alike would take too long
        yield from (("gone", f"-{line}") for line in before)
        yield from (("added", f"+{line}") for line in after)
        return
    for line in islice(unified_diff(before, after, lineterm=""), 2, None):
        yield _KINDS.get(line[:1], ""), line


def _as_text(value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _short(text: str) -> str:
    """Its beginning, as it may be shown, and how much more there is."""
    more = len(text) - TEXT_LIMIT
    return visible(text) if more <= 0 else f"{visible(text[:TEXT_LIMIT])}\n… ({more} characters more)"
