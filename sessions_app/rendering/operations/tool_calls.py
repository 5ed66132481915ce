"""What a page shows of a tool call: its input, outputs and diffs. Agents can send anything, in any amount."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any, Final

from sessions_app.kernel.rules.wording import plural
from sessions_app.redaction.visible_text import make_visible
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT
from sessions_app.workspace.rules.file_diffs import compare_files

TITLE_LIMIT: Final = 500
"""Characters that the conversation shows of a title, a path or a status."""
IMAGE_LIMIT: Final = 256 * 1024
"""Maximum number of bytes of an image in a tool's content that is shown; a larger one is named."""
IMAGES_SHOWN: Final = 2
"""Maximum number of images that are shown of one tool call."""
_IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types that browsers show without running anything; SVG is none of them."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is shown of a tool call."""

    text: int
    """Characters of an input, an output, or the changes to a file."""
    line: int
    """Characters of a title or path."""
    parts: int
    """Number of outputs, of diffs and of paths."""


IN_CONVERSATION: Final = Extent(text=20_000, line=TITLE_LIMIT, parts=20)
FOR_REVIEW: Final = Extent(text=REVIEW_LIMIT, line=REVIEW_LIMIT, parts=1_000)
"""On the card that asks whether to allow it."""


def describe_tool_call(payload: Mapping[str, Any], extent: Extent) -> dict[str, Any]:
    """Return title, status, places, input, outputs and diffs of a tool call, each of bounded length.

    ``hidden`` is the number of outputs, diffs and images that are not among them.
    ``is_whole`` is False if anything is left out.
    """
    parts = only_dicts(payload.get("content"))
    raw_input = _as_text(payload.get("raw_input"))
    outputs = [text for text in _outputs(parts, payload) if text]
    changes = [part for part in parts if part.get("type") == "diff"]
    images = [image for image in map(_image_of, parts) if image]
    paths = [_text_of(place.get("path")) for place in only_dicts(payload.get("locations"))]
    diffs = [_describe_diff(part, extent) for part in changes[: extent.parts]]
    hidden = _excess(outputs, extent.parts) + _excess(changes, extent.parts) + _excess(images, IMAGES_SHOWN)
    has_long_text = any(len(text) > extent.text for text in (raw_input, *outputs))
    has_long_diff = any(diff["more"] for diff in diffs)
    is_whole = not hidden and not has_long_text and not has_long_diff and not _excess(paths, extent.parts)
    return {
        "title": tool_title(payload, extent.line),
        "sub_agent": shorten(_text_of(payload.get("sub_agent")), extent.line),
        "status": tool_status(payload),
        "places": [shorten(path, extent.line) for path in paths[: extent.parts]],
        "input": shorten(raw_input, extent.text),
        "outputs": [shorten(text, extent.text) for text in outputs[: extent.parts]],
        "diffs": diffs,
        "images": images[:IMAGES_SHOWN],
        "hidden": hidden,
        "is_whole": is_whole,
    }


def _excess(values: Sequence[Any], limit: int) -> int:
    return max(0, len(values) - limit)


def tool_title(payload: Mapping[str, Any], limit: int = TITLE_LIMIT) -> str:
    """Return the title of a tool call."""
    title = _text_of(payload.get("title")) or _text_of(payload.get("tool_call_id")) or "Tool call"
    return shorten(title, limit)


def tool_status(payload: Mapping[str, Any]) -> str:
    """Return the status that the agent reports."""
    return make_visible(_text_of(payload.get("status"))[:40])


def only_dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list that an agent sent. Agents can send anything, so other values are dropped."""
    if isinstance(value, list):
        return [part for part in value if isinstance(part, dict)]
    return []


def shorten(text: str, limit: int) -> str:
    """Return beginning and end of a text with invisible characters visible, and how much is left out between them."""
    more = len(text) - limit
    if more <= 0:
        return make_visible(text)
    half = limit // 2
    left_out = plural(more, "1 character more", "{} characters more")
    return f"{make_visible(text[:half])}\n… ({left_out}) …\n{make_visible(text[-half:])}"


def _text_of(value: Any) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    return ""


def _outputs(parts: Sequence[Mapping[str, Any]], payload: Mapping[str, Any]) -> list[str]:
    texts = [_part_text(part) for part in parts]
    if any(texts) or any(map(_image_of, parts)):
        return texts
    return [_as_text(payload.get("raw_output"))]


def _part_text(part: Mapping[str, Any]) -> str:
    """Return the text of a part of a tool's content. Other parts are named, but for diffs and images that are shown."""
    if part.get("type") == "diff" or _image_of(part):
        return ""
    inner = _inner_block(part)
    if isinstance(inner.get("text"), str):
        return str(inner["text"])
    resource = inner.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    names = [inner[name] for name in ("mimeType", "uri", "name", "terminalId") if isinstance(inner.get(name), str)]
    kind = _text_of(inner.get("type"))
    if kind:
        return f"[{' '.join([kind, *names])}]"
    return ""


def _inner_block(part: Mapping[str, Any]) -> Mapping[str, Any]:
    content = part.get("content")
    if isinstance(content, dict):
        return content
    return part


def _image_of(part: Mapping[str, Any]) -> str:
    """Return an image in a tool's content as a data URL; empty for anything else, and for one that is too large."""
    inner = _inner_block(part)
    media_type, data = inner.get("mimeType"), inner.get("data")
    if inner.get("type") != "image" or not isinstance(media_type, str) or media_type not in _IMAGE_TYPES:
        return ""
    if not isinstance(data, str) or len(data) > IMAGE_LIMIT * 4 // 3 or not _BASE64.fullmatch(data):
        return ""
    return f"data:{media_type};base64,{data}"


def _describe_diff(part: Mapping[str, Any], extent: Extent) -> dict[str, Any]:
    """Return the diff of one file: ``{path, is_new, added, gone, html, more}``.

    The whole versions are compared. ``more`` is the number of lines that are left out of the display.
    """
    old = _as_text(part.get("oldText") or part.get("old_text"))
    new = _as_text(part.get("newText") or part.get("new_text"))
    compared = compare_files(old, new)
    ends = list(accumulate(len(text) for _, text in compared.lines))
    shown = compared.lines[: bisect_right(ends, extent.text)]
    lines = [f'<span class="{kind}">{escape(make_visible(text))}\n</span>' for kind, text in shown]
    return {
        "path": shorten(_text_of(part.get("path")), extent.line),
        "is_new": not old,
        "added": compared.added,
        "gone": compared.gone,
        "html": "".join(lines),
        "more": len(compared.lines) - len(shown),
    }


def _as_text(value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)
