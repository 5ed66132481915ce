"""The files of a prompt for an agent: as ACP content blocks as far as it takes them, text files as text otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from executors_app.agentctl.drivers import TurnFailed
from executors_app.agentctl.drivers.events import content_text

UNSUPPORTED: Final = "attachment_unsupported"
_WORDS: Final[Mapping[str, str]] = {"image": "images", "audio": "audio", "resource": "files other than text"}


def fit_blocks(attachments: Iterable[Mapping[str, Any]], taken: Collection[str]) -> list[dict[str, Any]]:
    """Return the content blocks of a prompt's files for an agent that takes the kinds ``taken`` beside text.

    A text file becomes a fenced block of text for an agent that takes no resources. Raises TurnFailed for other files
    that the agent does not take; nothing has been sent to it then.
    """
    return [_fit_block(each, taken) for each in attachments]


def _fit_block(block: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    kind = str(block.get("type"))
    if kind in ("text", "resource_link") or kind in taken:
        return dict(block)
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return {"type": "text", "text": _fenced(_name(resource), resource["text"])}
    raise TurnFailed(UNSUPPORTED, f"The agent takes no {_WORDS.get(kind, kind)} in a prompt, so it was sent nothing.")


def prompt_text(text: str, attachments: Sequence[Mapping[str, Any]]) -> str:
    """Return a prompt for an agent that accepts only text; raises TurnFailed for files that are not text."""
    return "\n\n".join([text, *map(content_text, fit_blocks(attachments, ()))])


def describe_attachments(attachments: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return ``{name, media_type}`` of each file, for the journal, which does not repeat the contents."""
    described = []
    for block in attachments:
        inner = block.get("resource")
        of = inner if isinstance(inner, dict) else block
        described.append({"name": _name(of), "media_type": str(of.get("mimeType") or "")})
    return described


def _name(resource: Mapping[str, Any]) -> str:
    return unquote(str(resource.get("uri") or "")).rpartition("/")[2]


def _fenced(name: str, text: str) -> str:
    """Return a text file as Markdown, fenced by more backticks than it has in a row."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"Attached file {name or 'without a name'}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}"
