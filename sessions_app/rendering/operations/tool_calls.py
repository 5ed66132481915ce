"""What a page shows of a tool call: its input, outputs and diffs. Agents can send anything, in any amount."""

from __future__ import annotations

import base64
import hashlib
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
from sessions_app.stream.rules.tool_calls import COMMAND_FIELDS, REVIEW_LIMIT, command_of
from sessions_app.workspace.rules.file_diffs import compare_files

TITLE_LIMIT: Final = 500
"""Characters that the conversation shows of a title, a path or a status."""
IMAGE_LIMIT: Final = 700 * 1024
"""Maximum number of bytes of an image in a tool's content that is shown; a larger one is named."""
IMAGES_SHOWN: Final = 2
"""Maximum number of images that are shown of one tool call."""
_IMAGE_SIGNATURES: Final[Mapping[str, re.Pattern[bytes]]] = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""How the content begins of each type that browsers show without running anything; SVG is none of them."""
_SIGNATURE_CHARS: Final = 16
"""Characters of base64 that contain the longest of these beginnings."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
UNFOLDED_LINES: Final = 60
"""Lines of the diffs of one tool call that the conversation shows unfolded; longer ones show their counts."""
COMMAND_LINE_LIMIT: Final = 200
"""Characters of the first line of a command that stand for a folded tool call."""
_DIRECTORY_FIELDS: Final = ("cwd", "workdir", "working_directory", "directory")
_TOLD_FIELDS: Final = frozenset({*COMMAND_FIELDS, *_DIRECTORY_FIELDS, "description", "timeout"})
"""Fields of the input of a command that change nothing of what it does, or are shown beside it."""


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
    """Return title, status, places, command, input, outputs and diffs of a tool call, each of bounded length.

    ``command`` is what a shell runs, if the input says that, and ``command_line`` its beginning. ``tells_all`` is False
    if the input has more than the command and its directory, or the changes. ``images`` are digests.
    ``hidden`` is the number of outputs, diffs and images that are not among them.
    ``is_whole`` is False if anything is left out.
    """
    parts = only_dicts(payload.get("content"))
    raw_input = _as_text(payload.get("raw_input"))
    command = command_of(payload)
    outputs = [text for text in _outputs(parts, payload) if text]
    changes = [part for part in parts if part.get("type") == "diff"]
    images = find_images(payload)
    paths = [_text_of(place.get("path")) for place in only_dicts(payload.get("locations"))]
    diffs = [_describe_diff(part, extent) for part in changes[: extent.parts]]
    hidden = _excess(outputs, extent.parts) + _excess(changes, extent.parts) + _excess(images, IMAGES_SHOWN)
    has_long_text = any(len(text) > extent.text for text in (raw_input, command, *outputs))
    has_long_diff = any(diff["more"] for diff in diffs)
    is_whole = not hidden and not has_long_text and not has_long_diff and not _excess(paths, extent.parts)
    return {
        "title": tool_title(payload, extent.line),
        "sub_agent": shorten(_text_of(payload.get("sub_agent")), extent.line),
        "status": tool_status(payload),
        "places": [shorten(path, extent.line) for path in paths[: extent.parts]],
        "command": shorten(command, extent.text),
        "command_line": _first_line(command),
        "is_titled": _is_titled(payload, command),
        "directory": shorten(_first_text(payload, _DIRECTORY_FIELDS) if command else "", extent.line),
        "tells_all": _tells_all(payload.get("raw_input"), command, changes),
        "input": shorten(raw_input, extent.text),
        "outputs": [shorten(text, extent.text) for text in outputs[: extent.parts]],
        "diffs": diffs,
        "unfolds": _unfolds(diffs, images),
        "images": [image.digest for image in images[:IMAGES_SHOWN]],
        "hidden": hidden,
        "is_whole": is_whole,
    }


def _unfolds(diffs: Sequence[Mapping[str, Any]], images: Sequence[ToolImage]) -> bool:
    """Whether the conversation shows a tool call unfolded: its changes are few, or it has an image."""
    if any(diff["more"] for diff in diffs):
        return False
    shown = sum(diff["lines"] for diff in diffs)
    return shown <= UNFOLDED_LINES and bool(diffs or images)


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
    if any(texts) or any(map(_is_image, parts)):
        return texts
    return [_as_text(payload.get("raw_output"))]


def _part_text(part: Mapping[str, Any]) -> str:
    """Return the text of a part of a tool's content. Other parts are named, but for diffs and images that are shown."""
    if part.get("type") == "diff" or _is_image(part):
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


def _is_titled(payload: Mapping[str, Any], command: str) -> bool:
    """Whether a command has a title that is not only the command again."""
    return tool_title(payload).strip("` \n") not in ("", command.strip())


def _tells_all(raw_input: Any, command: str, changes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an input has nothing but what is shown beside it: a command and its directory, or changes of files."""
    if not isinstance(raw_input, dict):
        return isinstance(raw_input, str) and raw_input == command
    for names in (COMMAND_FIELDS, _DIRECTORY_FIELDS):
        if len(raw_input.keys() & names) > 1:
            return False
    shown = {value for change in changes for value in change.values() if isinstance(value, str)}
    told = _TOLD_FIELDS if command else frozenset[str]()
    return all(name in told or (isinstance(value, str) and value in shown) for name, value in raw_input.items())


def _first_text(payload: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these fields of the input that has a text."""
    raw_input = payload.get("raw_input")
    if not isinstance(raw_input, dict):
        return ""
    return next((text for name in names if (text := _text_of(raw_input.get(name)))), "")


def _first_line(command: str) -> str:
    """Return the beginning of a command on one line, with a sign that more follows."""
    lines = command.strip().split("\n", 1)
    first = lines[0].rstrip()
    if len(first) > COMMAND_LINE_LIMIT:
        return f"{make_visible(first[:COMMAND_LINE_LIMIT])} …"
    if len(lines) > 1:
        return f"{make_visible(first)} …"
    return make_visible(first)


@dataclass(frozen=True, slots=True)
class ToolImage:
    """An image of a tool: its media type, which its content has, and the content in base64."""

    media_type: str
    data: str

    @property
    def digest(self) -> str:
        """By which it is addressed: what is shown under an address never changes."""
        return hashlib.sha256(self.data.encode()).hexdigest()

    @property
    def content(self) -> bytes:
        """Its content."""
        return base64.b64decode(self.data)


def find_images(payload: Mapping[str, Any]) -> list[ToolImage]:
    """Return the images in the content of a tool call that can be shown, in their order."""
    found = map(_image_of, only_dicts(payload.get("content")))
    return [image for image in found if image is not None]


def _is_image(part: Mapping[str, Any]) -> bool:
    return _image_of(part) is not None


def _image_of(part: Mapping[str, Any]) -> ToolImage | None:
    """Return an image in a tool's content; None for anything else, and for one that is too large.

    The type is what the content begins with: an image that names another one is none.
    """
    inner = _inner_block(part)
    media_type, data = inner.get("mimeType"), inner.get("data")
    if inner.get("type") != "image" or not isinstance(media_type, str) or not isinstance(data, str):
        return None
    signature = _IMAGE_SIGNATURES.get(media_type)
    if signature is None or len(data) > IMAGE_LIMIT * 4 // 3 + 4 or len(data) % 4 or not _BASE64.fullmatch(data):
        return None
    if not signature.match(base64.b64decode(data[:_SIGNATURE_CHARS])):
        return None
    return ToolImage(media_type, data)


def _describe_diff(part: Mapping[str, Any], extent: Extent) -> dict[str, Any]:
    """Return the diff of one file: ``{path, is_new, added, gone, html, lines, more}``.

    The whole versions are compared. ``lines`` is the number of lines that are shown, ``more`` of those that are not.
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
        "lines": len(lines),
        "more": len(compared.lines) - len(shown),
    }


def _as_text(value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)
