"""What is indexed: messages of users and agents, titles and commands of tool calls, and the texts of tasks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from sessions_app.redaction.redactor import CONTEXT, redact_part

TEXT_LIMIT: Final = 16_000
"""Characters of a document: what follows them is not found."""
READ_LIMIT: Final = TEXT_LIMIT + CONTEXT
"""Characters of a text that are read: what follows the limit shows whether a secret begins before it."""
MAX_DOCUMENTS: Final = 20_000
"""Documents of one session; the oldest ones are removed from the index."""
RULES_VERSION: Final = 2
"""Raise this when a text is indexed in another way than before: every session is indexed again."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


class DocumentKind(StrEnum):
    """What a document is the text of."""

    USER = "user"
    AGENT = "agent"
    TOOL = "tool"
    TASK = "task"


MESSAGE_KINDS: Final = (DocumentKind.USER, DocumentKind.AGENT, DocumentKind.TOOL)
"""These are also the roles of messages."""


def document_text(text: str, secrets: Iterable[str]) -> str:
    """Return what is stored of a text: its first characters without secrets and line breaks."""
    is_cut = len(text) >= READ_LIMIT
    shown, _ = redact_part(text, 0, TEXT_LIMIT, secrets, cut_after=is_cut)
    normal = unicodedata.normalize("NFC", _CONTROL.sub(" ", shown))
    return " ".join(normal.split())[:TEXT_LIMIT]
