"""The demo agent's conversations: JSONL files, and what the user said in them."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
NUMBER: Final = re.compile(r"\byour number is (\d{1,9})\b|\badd (\d{1,9})\b", re.IGNORECASE)
"""A line that gives a number, or adds to it."""
_CONTINUES: Final = re.compile(
    r"^(?:Your process was restarted|Your last turn)\b.*?^The last request was:\s+((?:^>.*\n?)+)",
    re.MULTILINE | re.DOTALL,
)
"""The prompt by which Kandev has an interrupted turn continued (``sessions_app.domain.continuation``)."""
_WORD: Final = re.compile(r"\bremember\s+(?:the word\s+)?([^\s.,;:!?\"']+)", re.IGNORECASE)


class RpcError(Exception):
    """An error answer of JSON-RPC."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code, self.message = code, message


class Conversation:
    """One conversation: a JSONL file of ``{"role", "text"}`` and a log of everything that was said."""

    def __init__(self, home: Path, conversation_id: str, cwd: str):
        self.id, self.cwd = conversation_id, cwd
        self._path = home / f"{conversation_id}.jsonl"
        self._said = home / f"{conversation_id}.said"

    @classmethod
    def create(cls, home: Path, cwd: str) -> Conversation:
        """Create a new, empty conversation on disk."""
        conversation = cls(home, f"demo-{uuid.uuid4().hex}", cwd)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        conversation._path.touch()
        return conversation

    @classmethod
    def load(cls, home: Path, conversation_id: object, cwd: str) -> Conversation:
        """Load a conversation; raises RpcError -32002 if there is none."""
        known = isinstance(conversation_id, str) and _ID.fullmatch(conversation_id)
        if not known or not (home / f"{conversation_id}.jsonl").exists():
            raise RpcError(-32002, f"Resource not found: conversation {conversation_id} is gone")
        return cls(home, str(conversation_id), cwd)

    def entries(self) -> Iterator[tuple[str, str]]:
        """Yield role and text of each entry, without a line that a kill left incomplete."""
        for line in self._path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                yield entry["role"], entry["text"]
            except (ValueError, KeyError, TypeError):
                continue

    def keep(self, role: str, text: str, *, sync: bool = True) -> None:
        """Append one entry; with ``sync`` it is on disk before this returns."""
        line = json.dumps({"role": role, "text": text}).encode() + b"\n"
        with self._path.open("a+b") as file:
            if file.tell() and not self._ends_with_newline(file.tell()):
                line = b"\n" + line
            file.write(line)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def truncate(self) -> None:
        """Delete all entries."""
        self._path.write_bytes(b"")

    def log_said(self, text: str) -> None:
        """Append to the log of everything said, before it is sent."""
        with self._said.open("ab") as file:
            file.write(text.encode())

    def word(self) -> str | None:
        """Return the last word that the user asked to remember."""
        words = [word for role, text in self.entries() if role == "user" for word in _WORD.findall(text)]
        return words[-1] if words else None

    def number(self) -> int | None:
        """Return the user's number with everything that was to be added to it."""
        number = None
        for text in (text for role, text in self.entries() if role == "user"):
            # A quoted request was counted when it was first sent: to continue it does not add its number again.
            for given, added in NUMBER.findall(_without_quotes(text)):
                number = int(given) if given else None if number is None else number + int(added)
        return number

    def _ends_with_newline(self, size: int) -> bool:
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"


def describe_files(blocks: list[dict[str, Any]]) -> str:
    """Return what a prompt carries beside text, such as ``1 image, 2 files``; empty if nothing."""
    kinds = [block.get("type") for block in blocks]
    counts = {"image": kinds.count("image"), "file": kinds.count("resource")}
    return ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count)


def _without_quotes(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(">"))


def interrupted_request(text: str) -> list[str]:
    """Return the lines of the request that a continue prompt quotes; empty for any other prompt."""
    found = _CONTINUES.search(text)
    if found is None:
        return []
    lines = [line.removeprefix(">").strip() for line in found[1].splitlines()]
    # If the continued turn was interrupted as well, the request quotes the previous continue prompt.
    return interrupted_request("\n".join(lines)) or lines
