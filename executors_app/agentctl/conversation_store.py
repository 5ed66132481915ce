"""Conversations that agentctl keeps itself, for far ends that keep none: a chat API answers and forgets.

``<state>/conversations/<id>.jsonl``, 0600: a line for each entry, appended and synced before ``append``
returns. The id is opaque and is the resume token. What a kill tears off the end is cut at the next
opening, and said.
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
"""Takes the user's entry of the same key back: nobody has read it."""
_OPEN_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_ROLES: Final = frozenset({USER, AGENT, WITHDRAWN})


class ConversationGone(Exception):
    """There is no such conversation in this store."""


@dataclass(frozen=True, slots=True)
class ConversationEntry:
    """What one side said in the turn ``key``."""

    key: str
    role: str
    text: str
    cut: bool = False
    """The turn ended before the text did."""


class ConversationStore:
    """The store of one execution; its directory is made with the first conversation."""

    def __init__(self, directory: Path):
        self._directory = directory

    def create(self) -> Conversation:
        """Begin a new, empty conversation; it is on the disk when this returns. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        conversation_id = f"chat-{uuid.uuid4().hex}"
        descriptor = os.open(self._path(conversation_id), os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600)
        sync_directory(self._directory)
        sync_directory(self._directory.parent)
        return Conversation(conversation_id, descriptor, [])

    def open(self, conversation_id: str) -> Conversation:
        """Take a conversation up again; ConversationGone if it is not here, OSError if it cannot be read."""
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
    """One open conversation; close it."""

    def __init__(self, conversation_id: str, descriptor: int, entries: list[ConversationEntry], end: int = 0):
        self.id = conversation_id
        self.lost = 0
        """Bytes that were no whole entries when it was opened: a torn end, or damage."""
        self._descriptor, self._entries, self._end = descriptor, entries, end

    @property
    def entries(self) -> Sequence[ConversationEntry]:
        """What was said and not taken back, oldest first."""
        withdrawn = {entry.key for entry in self._entries if entry.role == WITHDRAWN}
        return [entry for entry in self._entries if entry.key not in withdrawn]

    def append(self, entry: ConversationEntry) -> None:
        """Keep an entry; it is on the disk when this returns. The same key and role again changes nothing. OSError."""
        if any((kept.key, kept.role) == (entry.key, entry.role) for kept in self._entries):
            return
        entry = replace(entry, text=entry.text.encode("utf-8", "replace").decode())  # half a character is no JSON
        try:
            end = write_all(self._descriptor, _encode_entry(entry), self._end)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end = end
        self._entries.append(entry)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _read_entries(conversation_id: str, descriptor: int) -> Conversation:
    """Every whole entry; a torn end is cut off, so that the next entry begins a line."""
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
    told: dict[str, Any] = {"key": entry.key, "role": entry.role, "text": entry.text}
    if entry.cut:
        told["cut"] = True
    return orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE)


def _decode_entry(line: bytes) -> ConversationEntry | None:
    try:
        told = orjson.loads(line)
    except ValueError:
        return None
    match told:
        case {"key": str(key), "role": str(role), "text": str(text)} if role in _ROLES:
            return ConversationEntry(key, role, text, cut=told.get("cut") is True)
    return None
