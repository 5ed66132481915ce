"""What agentctl must remember over its own restart, so that a command given twice is done once.

``memory.jsonl`` holds (topic, key) -> value, appended and synced before ``keep`` returns;
``token.json`` the agent's own conversation id. Both are 0600 and never leave the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.discretion import Discretion
from executors_app.agentctl.discretion import fingerprint as fingerprint_of
from executors_app.agentctl.durable_files import replace_file, sync_directory, write_all

_REWRITE_AT: Final = 1000


class Memory:
    """A small durable dictionary; all calls block for a disk write at most."""

    def __init__(self, path: Path):
        self._path = path
        self._known: dict[tuple[str, str], Any] = {}
        if self._load() >= _REWRITE_AT:
            replace_file(path, b"".join(_entry(*key, value) for key, value in self._known.items()))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._end = path.stat().st_size
        sync_directory(path.parent)

    def recall(self, topic: str, key: str = "") -> Any:
        """What was kept last; None if nothing was."""
        return self._known.get((topic, key))

    def known(self, topic: str) -> dict[str, Any]:
        """What was kept of a topic, by key, oldest first."""
        return {key: value for (of, key), value in self._known.items() if of == topic}

    def keep(self, topic: str, key: str, value: Any) -> None:
        """Remember a JSON value that is not None; it is on the disk when this returns. Raises OSError."""
        entry = _entry(topic, key, value)
        try:
            end = write_all(self._fd, entry, self._end)
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end = end
        self._known[topic, key] = value

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def _load(self) -> int:
        """Read every whole entry; returns how many lines are of no use, because superseded or unreadable."""
        if not self._path.exists():
            return 0
        *lines, torn = self._path.read_bytes().split(b"\n")
        unreadable = bool(torn)
        for raw in lines:
            match _parsed(raw):
                case [str(topic), str(key), value]:
                    self._known[topic, key] = value
                case _:
                    unreadable = True
        return _REWRITE_AT if unreadable else len(lines) - len(self._known)


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:
        return None


def _entry(topic: str, key: str, value: Any) -> bytes:
    return orjson.dumps([topic, key, value], option=orjson.OPT_APPEND_NEWLINE)


class Token:
    """The agent's own conversation id: a credential, kept apart (rule 22)."""

    def __init__(self, path: Path):
        self._path = path
        try:
            content = orjson.loads(path.read_bytes())
        except (OSError, ValueError):
            content = {}
        sound = isinstance(content, dict) and all(isinstance(value, str | None) for value in content.values())
        self._content: Mapping[str, Any] = content if sound else {}
        self.discretion = Discretion()
        """Knows every token that was kept here."""
        self.discretion.learn(self.value)

    @property
    def value(self) -> str | None:
        """The token; None before the first conversation."""
        return self._content.get("resume_token")

    @property
    def last_message_uuid(self) -> str | None:
        """The agent's name for its last message, where it tells one."""
        return self._content.get("last_message_uuid")

    @property
    def fingerprint(self) -> str | None:
        """What may be shown of the token."""
        return fingerprint_of(self.value) if self.value else None

    def keep(self, value: str, last_message_uuid: str | None) -> bool:
        """Keep it on the disk before this returns; False if nothing changed. Raises OSError."""
        self.discretion.learn(value)
        content = {"resume_token": value, "last_message_uuid": last_message_uuid}
        if content == self._content:
            return False
        replace_file(self._path, orjson.dumps(content))
        self._content = content
        return True
