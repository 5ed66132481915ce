"""What a prompt may carry beside its text: limits, content types by content, and ACP content blocks.

The name that a client gives a file decides nothing. A type that is not in the table is refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

MAX_FILES: Final = 10
"""Files of one prompt."""
MAX_FILE_BYTES: Final = 5 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 6 * 1024 * 1024
"""Of all files of one prompt: with base64 and the longest text they fit into one request to agentctl."""
NAME_LIMIT: Final = 200
"""Characters of a file's name."""
TEXT: Final = "text/plain"
_SIGNATURES: Final[tuple[tuple[bytes, int, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3\x03", 0, "audio/mpeg"),
    (b"ID3\x04", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"%PDF-", 0, "application/pdf"),
)
"""Bytes that a file of the type has, and where."""
TYPES_SENTENCE: Final = "PNG, JPEG, GIF and WebP images; WAV, MP3, Ogg and FLAC audio; PDF; and text in UTF-8"
CAPABILITY_BY_BLOCK: Final[Mapping[str, str]] = {
    "image": "images",
    "audio": "audio",
    "resource": "files other than text",
}
"""Kinds of content blocks that an agent may accept in a prompt, and what people call them."""


def taken_files_sentence(taken: Collection[str] | None) -> str:
    """Return which files an agent accepts, if not all; ``taken``: kinds of content blocks, None if not known."""
    if taken is None or set(CAPABILITY_BY_BLOCK) <= set(taken):
        return ""
    kinds = [what for block, what in CAPABILITY_BY_BLOCK.items() if block in taken and block != "resource"]
    if "resource" in taken:
        return f"This agent accepts {', '.join([*kinds, 'text files'])} and PDF."
    if kinds:
        return f"This agent accepts {', '.join(kinds)} and text files."
    return "This agent accepts text files only."


def media_type_of(content: bytes) -> str | None:
    """Return the media type that the content proves; None for any type that a prompt may not carry."""
    for signature, at, media_type in _SIGNATURES:
        # RIFF is the container of two of the types; its ninth byte shows which one it is.
        if content[at : at + len(signature)] == signature and (not at or content.startswith(b"RIFF")):
            return media_type
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    if b"\0" in content:
        return None
    return TEXT


def block_of(media_type: str) -> str:
    """Return the kind of content block for a media type: ``text`` for a text file, which every agent accepts."""
    main = media_type.partition("/")[0]
    if media_type == TEXT:
        return "text"
    if main in ("image", "audio"):
        return main
    return "resource"


def clean_name(name: str) -> str:
    """Return the last part of a path, without characters that cannot be shown, at most ``NAME_LIMIT`` long."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(each if each.isprintable() else "_" for each in last).strip()[-NAME_LIMIT:] or "file"


@dataclass(frozen=True, slots=True)
class AttachedFile:
    """A file of a prompt, checked."""

    name: str
    media_type: str
    content: bytes

    def described(self) -> dict[str, Any]:
        """Return ``{name, media_type, size, sha256}``, as prompts, messages and the API describe it."""
        digest = hashlib.sha256(self.content).hexdigest()
        return {"name": self.name, "media_type": self.media_type, "size": len(self.content), "sha256": digest}


def content_block(described: Mapping[str, Any], content: bytes) -> dict[str, Any]:
    """Return the ACP content block of an attached file."""
    media_type = described["media_type"]
    kind = block_of(media_type)
    if kind in ("image", "audio"):
        return {"type": kind, "mimeType": media_type, "data": base64.b64encode(content).decode()}
    resource = {"uri": f"attachment:///{quote(described['name'])}", "mimeType": media_type}
    if kind == "text":
        body = {"text": content.decode()}
    else:
        body = {"blob": base64.b64encode(content).decode()}
    return {"type": "resource", "resource": {**resource, **body}}


def first_untaken(described: Collection[Mapping[str, Any]], taken: Collection[str]) -> Mapping[str, Any] | None:
    """Return the first file that an agent which accepts the blocks ``taken`` cannot get; None if it accepts all.

    A text file is sent as text to an agent that accepts no embedded files.
    """
    return next((each for each in described if block_of(each["media_type"]) not in {"text", *taken}), None)


def names_sentence(described: Any) -> str:
    """Return one line that names the files, for an agent that does not get them; empty if there are none."""
    if isinstance(described, list):
        listed = [each for each in described if isinstance(each, Mapping)]
    else:
        listed = []
    names = ", ".join(f"{each.get('name', 'file')} ({each.get('media_type', 'unknown type')})" for each in listed)
    if names:
        return f"[Attached: {names}]"
    return ""
