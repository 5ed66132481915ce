"""The files of agentctl's state directory.

Durable writes, the instance lock, results of commands that must survive a restart, the agent's token and the
generation fence.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.agentctl.journal.filters import TokenRedactor
from executors_app.agentctl.journal.filters import token_fingerprint as fingerprint_of
from executors_app.agentctl.protocol import ApiError, Code


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, 0600 and on the disk before this returns; raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    draft.replace(path)
    sync_directory(path.parent)


def write_all(fd: int, data: bytes, offset: int) -> int:
    """Write every byte at ``offset`` whatever short writes there are; returns the offset behind them."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
    return offset


def sync_directory(directory: Path) -> None:
    """Make the names in a directory as durable as the files."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_LOCK_POLL: Final = 0.02
_READY_INFO_LIMIT: Final = 65536


class AlreadyRunning(Exception):
    """Another agentctl has the directory; ``ready`` is its ready info, None if it never got ready."""

    def __init__(self, ready: dict[str, Any] | None):
        super().__init__("another agentctl has this state directory")
        self.ready = ready


class InstanceLock:
    """Taken when made, for as long as the process lives; raises Held after at most ``patience`` seconds."""

    def __init__(self, state_dir: Path, patience: float = 10.0):
        # Not inheritable: a child that outlived us would keep the directory locked.
        self._fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        until = time.monotonic() + patience
        while not self._taken():
            ready = self._told()
            if ready is not None or time.monotonic() > until:
                os.close(self._fd)
                raise AlreadyRunning(ready)
            time.sleep(_LOCK_POLL)
        os.ftruncate(self._fd, 0)

    def tell(self, ready: Mapping[str, Any]) -> None:
        """Leave the ready info for whoever comes second."""
        os.pwrite(self._fd, orjson.dumps(ready), 0)

    def release(self) -> None:
        """Give the directory back."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _told(self) -> dict[str, Any] | None:
        try:
            ready = orjson.loads(os.pread(self._fd, _READY_INFO_LIMIT, 0))
        except ValueError:
            return None
        return ready if isinstance(ready, dict) else None


_REWRITE_AT: Final = 1000


class DurableStore:
    """A small durable dictionary; all calls block for a disk write at most."""

    def __init__(self, path: Path):
        self._path = path
        self._known: dict[tuple[str, str], Any] = {}
        if self._load() >= _REWRITE_AT:
            replace_file(path, b"".join(_encode_entry(*key, value) for key, value in self._known.items()))
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
        entry = _encode_entry(topic, key, value)
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
            match _parse_entry(raw):
                case [str(topic), str(key), value]:
                    self._known[topic, key] = value
                case _:
                    unreadable = True
        return _REWRITE_AT if unreadable else len(lines) - len(self._known)


def _parse_entry(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:
        return None


def _encode_entry(topic: str, key: str, value: Any) -> bytes:
    return orjson.dumps([topic, key, value], option=orjson.OPT_APPEND_NEWLINE)


class TokenFile:
    """The agent's own conversation id: a credential, kept apart (rule 22)."""

    def __init__(self, path: Path):
        self._path = path
        try:
            content = orjson.loads(path.read_bytes())
        except (OSError, ValueError):
            content = {}
        sound = isinstance(content, dict) and all(isinstance(value, str | None) for value in content.values())
        self._content: Mapping[str, Any] = content if sound else {}
        self.discretion = TokenRedactor()
        """Knows every token that was kept here."""
        self.discretion.add_token(self.value)

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
        self.discretion.add_token(value)
        content = {"resume_token": value, "last_message_uuid": last_message_uuid}
        if content == self._content:
            return False
        replace_file(self._path, orjson.dumps(content))
        self._content = content
        return True


class GenerationFence:
    """Remembers the highest generation seen, over restarts."""

    def __init__(self, memory: DurableStore):
        self._memory = memory
        self.generation: int = memory.recall("generation") or 0
        self.on_newer_generation: Callable[[int], None] = lambda generation: None
        """Called with each newer generation."""

    def admit(self, generation: int) -> None:
        """Let a command of this generation pass; Refused if a newer one was seen."""
        if generation < self.generation:
            raise ApiError(
                Code.STALE_GENERATION, "a newer generation has taken over", seen=self.generation, given=generation
            )
        if generation > self.generation:
            self._memory.keep("generation", "", generation)
            self.generation = generation
            self.on_newer_generation(generation)
