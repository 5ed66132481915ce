"""The files of a prompt: as ACP content blocks if the agent accepts them; otherwise, text files are sent as text."""

from __future__ import annotations

import base64
import errno
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

from executors_app.agentctl.drivers import TurnFailed
from executors_app.agentctl.drivers.acp_updates import content_text
from executors_app.wire.protocol import Code

UNSUPPORTED: Final = "attachment_unsupported"
_IMAGE_SUFFIXES: Final[Mapping[str, str]] = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_WORDS: Final[Mapping[str, str]] = {"image": "images", "audio": "audio", "resource": "files other than text"}


def fit_blocks(attachments: Iterable[Mapping[str, Any]], taken: Collection[str]) -> list[dict[str, Any]]:
    """Return the content blocks of a prompt's files for an agent that accepts the kinds ``taken`` in addition to text.

    A text file becomes a fenced block of text for an agent that accepts no resources. Raises TurnFailed for other files
    that the agent does not accept; nothing has been sent to it then.
    """
    return [_fit_block(each, taken) for each in attachments]


def _fit_block(block: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    kind = str(block.get("type"))
    if kind in ("text", "resource_link") or kind in taken:
        return dict(block)
    resource = block.get("resource")
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return {"type": "text", "text": _fenced(_name(resource), resource["text"])}
    what = _WORDS.get(kind, kind)
    raise TurnFailed(UNSUPPORTED, f"The agent does not accept {what} in a prompt, so nothing was sent.")


def prompt_text(text: str, attachments: Sequence[Mapping[str, Any]]) -> str:
    """Return a prompt for an agent that accepts only text; raises TurnFailed for files that are not text."""
    return "\n\n".join([text, *map(content_text, fit_blocks(attachments, ()))])


def split_images(
    attachments: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the images among a prompt's files, and the other files."""
    images, others = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for each in attachments:
        if each.get("type") == "image":
            images.append(each)
        else:
            others.append(each)
    return images, others


@contextmanager
def image_files(images: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the paths of files with these images, which are removed afterwards; only the agent's user can read them.

    Raises TurnFailed if they cannot be written.
    """
    with ExitStack() as stack:
        paths: list[str] = []
        try:
            for number, block in enumerate(images, 1):
                if not paths:
                    folder = Path(stack.enter_context(TemporaryDirectory(prefix="kandev-images-")))
                path = folder / f"{number}.{_IMAGE_SUFFIXES.get(str(block.get('mimeType')), 'png')}"
                path.write_bytes(base64.b64decode(str(block.get("data"))))
                paths.append(str(path))
        except OSError as error:
            code = Code.INTERNAL_ERROR
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                code = Code.DISK_FULL
            raise TurnFailed(code, f"the images could not be written for the agent: {error.strerror}") from error
        yield paths


def describe_attachments(attachments: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return ``{name, media_type}`` of each file, for the journal, which does not repeat the contents."""
    described = []
    for block in attachments:
        file = block.get("resource")
        if not isinstance(file, dict):
            file = block
        described.append({"name": _name(file), "media_type": str(file.get("mimeType") or "")})
    return described


def _name(resource: Mapping[str, Any]) -> str:
    return unquote(str(resource.get("uri") or "")).rpartition("/")[2]


def _fenced(name: str, text: str) -> str:
    """Return a text file as Markdown, fenced by more backticks than it has in a row."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"Attached file {name or 'without a name'}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}"
