"""The files of agentctl's state directory: durable writes, instance lock, command results, token, generation."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.machine.process import identity
from executors_app.wire.exhaustion import raise_if_exhausted
from executors_app.wire.protocol import ApiError, Code
from executors_app.wire.token_redaction import TokenRedactor, token_fingerprint


def replace_file(path: Path, data: bytes) -> None:
    """Replace ``path`` atomically by ``data``, mode 0600 and on disk before this returns. Raises OSError.

    Order: write and fsync a temporary file, rename it, fsync the directory. A crash leaves the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    temporary.replace(path)
    sync_directory(path.parent)


def write_all(fd: int, data: bytes, offset: int) -> int:
    """Write all of ``data`` at ``offset``, also after short writes, and return the end offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
    return offset


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that new and renamed entries survive a crash."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_LOCK_POLL: Final = 0.02
_READY_INFO_LIMIT: Final = 65536


class AlreadyRunning(Exception):
    """Another agentctl holds the directory; ``ready`` is its ready info, None if it did not become ready."""

    def __init__(self, ready: dict[str, Any] | None):
        super().__init__("another agentctl holds this state directory")
        self.ready = ready


class InstanceLock:
    """A lock that is taken on creation and held while the process is running.

    Raises AlreadyRunning once the holder is ready, or after ``patience`` seconds.
    """

    def __init__(self, state_dir: Path, patience: float = 10.0):
        # Not inheritable: a child that outlives us would keep the directory locked.
        self._fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        until = time.monotonic() + patience
        while not self._try_lock():
            ready = self._read_ready_info()
            if (ready is not None and not _has_ended(ready)) or time.monotonic() > until:
                os.close(self._fd)
                raise AlreadyRunning(ready)
            time.sleep(_LOCK_POLL)
        os.ftruncate(self._fd, 0)

    def publish_ready_info(self, ready: Mapping[str, Any], ready_file: Path | None) -> None:
        """Write the ready info for an agentctl that finds the lock taken, and into the ready file, if there is one."""
        data = orjson.dumps(ready)
        os.pwrite(self._fd, data, 0)
        if ready_file is not None:
            replace_file(ready_file, data)

    def release(self) -> None:
        """Release the lock."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _read_ready_info(self) -> dict[str, Any] | None:
        try:
            ready = orjson.loads(os.pread(self._fd, _READY_INFO_LIMIT, 0))
        except ValueError:
            return None
        if isinstance(ready, dict):
            return ready
        return None


def _has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether the process of this ready info has ended; one of its threads may still hold the lock, in a sync."""
    pid = holder.get("pid")
    found = identity.read_stat(pid) if isinstance(pid, int) else None
    return found is None or found.ended


_REWRITE_AT: Final = 1000


class DurableStore:
    """A small durable dictionary in an append-only file, rewritten at start if mostly superseded."""

    def __init__(self, path: Path):
        self._path = path
        self._known: dict[tuple[str, str], Any] = {}
        if self._load() >= _REWRITE_AT:
            replace_file(path, b"".join(_encode_entry(*key, value) for key, value in self._known.items()))
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._end = path.stat().st_size
        sync_directory(path.parent)

    def get(self, topic: str, key: str = "") -> Any:
        """Return the last value of a key; None if there is none."""
        return self._known.get((topic, key))

    def items_of(self, topic: str) -> dict[str, Any]:
        """Return the values of a topic by key, oldest first."""
        return {key: value for (of, key), value in self._known.items() if of == topic}

    def put(self, topic: str, key: str, value: Any) -> None:
        """Store a JSON value other than None, on disk when this returns. Raises OSError."""
        entry = _encode_entry(topic, key, value)
        try:
            end = write_all(self._fd, entry, self._end)
            os.fdatasync(self._fd)
        except OSError:
            # Otherwise the rest of this entry could remain behind a shorter one that is written here next.
            os.ftruncate(self._fd, self._end)
            raise
        self._end = end
        self._known[topic, key] = value

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _load(self) -> int:
        """Read every complete entry; return the number of superseded lines, or enough for a rewrite after damage."""
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
        if unreadable:
            return _REWRITE_AT
        return len(lines) - len(self._known)


def _parse_entry(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:
        return None


def _encode_entry(topic: str, key: str, value: Any) -> bytes:
    return orjson.dumps([topic, key, value], option=orjson.OPT_APPEND_NEWLINE)


class TokenFile:
    """The agent's own conversation id: a credential, so it is stored apart from the journal."""

    def __init__(self, path: Path):
        self._path = path
        try:
            content = orjson.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise_if_exhausted(error)
            content = {}
        sound = isinstance(content, dict) and all(isinstance(value, str | None) for value in content.values())
        self._content: Mapping[str, Any] = content if sound else {}
        self.redactor = TokenRedactor()
        """Redacts every token that was saved here."""
        self.redactor.add_token(self.value)

    @property
    def value(self) -> str | None:
        """The token; None before the first conversation."""
        return self._content.get("resume_token")

    @property
    def last_message_uuid(self) -> str | None:
        """The agent's id of its last message, if it reports one."""
        return self._content.get("last_message_uuid")

    @property
    def fingerprint(self) -> str | None:
        """A fingerprint of the token, which may be shown."""
        if self.value:
            return token_fingerprint(self.value)
        return None

    def save(self, value: str, last_message_uuid: str | None) -> bool:
        """Save the token, on disk before this returns; False if nothing changed. Raises OSError."""
        self.redactor.add_token(value)
        content = {"resume_token": value, "last_message_uuid": last_message_uuid}
        if content == self._content:
            return False
        replace_file(self._path, orjson.dumps(content))
        self._content = content
        return True


class GenerationFence:
    """The highest generation seen, across restarts: commands of an older control plane are rejected."""

    def __init__(self, memory: DurableStore):
        self._memory = memory
        self.generation: int = memory.get("generation") or 0
        self.on_newer_generation: Callable[[int], None] = lambda generation: None
        """Called with each newer generation."""

    def admit(self, generation: int) -> None:
        """Accept a command of this generation; raises ApiError if a newer one was seen."""
        if generation < self.generation:
            raise ApiError(
                Code.STALE_GENERATION, "a newer generation has taken over", seen=self.generation, given=generation
            )
        if generation > self.generation:
            # On disk first: an agentctl that starts again must still reject the older generation.
            self._memory.put("generation", "", generation)
            self.generation = generation
            self.on_newer_generation(generation)
