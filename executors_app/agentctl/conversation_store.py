"""Conversations that agentctl stores itself, for providers that store none, such as a chat API.

One file per conversation, ``<state>/conversations/<id>.jsonl``, mode 0600. Each entry is one line, appended and synced
before ``append`` returns. The id is opaque and serves as the resume token. A line that a kill cut off is removed when
the file is opened next, and reported in ``Conversation.lost``.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.state_files import sync_directory, write_all

_ID: Final = re.compile(r"chat-[0-9a-f]{32}")
USER: Final = "user"
AGENT: Final = "assistant"
WITHDRAWN: Final = "withdrawn"
"""Withdraws the user's entry of the same key, which no model has read."""
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_ROLES: Final = frozenset({USER, AGENT, WITHDRAWN})


class ConversationGone(Exception):
    """The store has no such conversation."""


@dataclass(frozen=True, slots=True)
class ConversationEntry:
    """The text of one side in the turn ``key``."""

    key: str
    role: str
    text: str
    cut: bool = False
    """Whether the text is incomplete because the turn ended early."""


class ConversationStore:
    """The conversations of one execution. The directory is created with the first one."""

    def __init__(self, directory: Path):
        self._directory = directory

    def create(self) -> Conversation:
        """Create an empty conversation, on disk when this returns. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        conversation_id = f"chat-{uuid.uuid4().hex}"
        descriptor = os.open(self._path(conversation_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600)
        sync_directory(self._directory)
        sync_directory(self._directory.parent)
        return Conversation(conversation_id, descriptor, [])

    def open(self, conversation_id: str) -> Conversation:
        """Open a stored conversation; raises ConversationGone if there is none, OSError if it cannot be read."""
        if not _ID.fullmatch(conversation_id):
            raise ConversationGone
        try:
            descriptor = os.open(self._path(conversation_id), os.O_RDWR | _OPEN_FLAGS)
        except FileNotFoundError:
            raise ConversationGone from None
        try:
            return _read_entries(conversation_id, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _path(self, conversation_id: str) -> Path:
        return self._directory / f"{conversation_id}.jsonl"


class Conversation:
    """One open conversation; the caller closes it."""

    def __init__(self, conversation_id: str, descriptor: int, entries: list[ConversationEntry], end: int = 0):
        self.id = conversation_id
        self.lost = 0
        """Bytes that were not valid entries when it was opened: a torn last line, or damage."""
        self._descriptor, self._entries, self._end = descriptor, entries, end

    @property
    def entries(self) -> Sequence[ConversationEntry]:
        """The entries that were not withdrawn, oldest first."""
        withdrawn = {entry.key for entry in self._entries if entry.role == WITHDRAWN}
        return [entry for entry in self._entries if entry.key not in withdrawn]

    def append(self, entry: ConversationEntry) -> None:
        """Append an entry, on disk when this returns; an entry of the same key and role is kept. Raises OSError."""
        if any((known.key, known.role) == (entry.key, entry.role) for known in self._entries):
            return
        entry = replace(
            entry, text=entry.text.encode("utf-8", "replace").decode()
        )  # lone surrogates are not valid JSON
        try:
            end = write_all(self._descriptor, _encode_entry(entry), self._end)
            os.fdatasync(self._descriptor)
        except OSError:
            # Otherwise the rest of this entry could remain behind a shorter one that is written here next.
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end = end
        self._entries.append(entry)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _read_entries(conversation_id: str, descriptor: int) -> Conversation:
    """Read every complete entry, and cut a torn last line off so that the next entry starts on its own line."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        raw = file.read()
    *lines, torn = raw.split(b"\n")
    end = len(raw) - len(torn)
    if torn:
        os.ftruncate(descriptor, end)
        os.fdatasync(descriptor)
    read = [(line, _decode_entry(line)) for line in lines]
    conversation = Conversation(conversation_id, descriptor, [entry for _, entry in read if entry], end)
    conversation.lost = len(torn) + sum(len(line) for line, entry in read if entry is None)
    return conversation


def _encode_entry(entry: ConversationEntry) -> bytes:
    fields: dict[str, Any] = {"key": entry.key, "role": entry.role, "text": entry.text}
    if entry.cut:
        fields["cut"] = True
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _decode_entry(line: bytes) -> ConversationEntry | None:
    try:
        fields = orjson.loads(line)
    except ValueError:
        return None
    match fields:
        case {"key": str(key), "role": str(role), "text": str(text)} if role in _ROLES:
            return ConversationEntry(key, role, text, cut=fields.get("cut") is True)
    return None
