"""The content of one file, as answers about files show it: text where it is UTF-8, else base64."""

from __future__ import annotations

import base64
import codecs
import hashlib
from typing import Any


def describe_content(path: str, size: int, data: bytes, truncated: bool) -> dict[str, Any]:
    """Return a file's content, or its beginning, in the shape of ``read_content``."""
    encoding, content = _as_text(data, whole=not truncated)
    content_hash = None
    if not truncated:
        content_hash = hash_content(data)
    return {
        "path": path,
        "size": size,
        "encoding": encoding,
        "binary": encoding != "utf-8",
        "content": content,
        "truncated": truncated,
        "hash": content_hash,
    }


def hash_content(content: bytes) -> str:
    """Return the SHA-256 by which a writer names the content that it has read."""
    return hashlib.sha256(content).hexdigest()


def _as_text(data: bytes, *, whole: bool) -> tuple[str, str]:
    if b"\0" not in data:
        try:
            # The content may be cut in the middle of a character, which the decoder then holds back.
            return "utf-8", codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
        except UnicodeDecodeError:
            pass
    return "base64", base64.b64encode(data).decode("ascii")
