"""Read the files of a portable record, which may be damaged or hostile."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from executors_app.machine.untrusted_files import Directory
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.portable.record import FILES_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TOKENS_SUFFIX
from sessions_app.portable.rules.lines import BadLine, line_to_event
from sessions_app.prompts.rules.attachments import MAX_FILE_BYTES, media_type_of

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of bytes of a line, and of a snapshot."""
MAX_DEPTH: Final = 64
"""Maximum number of levels of a JSON value."""
MAX_VALUES: Final = 2_000_000
"""Commas and opening brackets of a line, or of a snapshot: each value takes far more memory than its characters."""
MAX_FINDINGS: Final = 1000
"""Problems of one session that are listed; more are counted."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was left out of an import, and where."""

    file: str
    line: int
    """Line number; 0: the whole file."""
    problem: str


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event with its line number in the file."""

    line: int
    event: LogEvent


@dataclass
class RecordReader:
    """Reads the files of one session and collects what was wrong with them."""

    folder: Path
    stem: str
    """Name of the files without suffix."""
    findings: list[Finding] = field(default_factory=list)
    unlisted: int = 0
    """Problems beyond ``MAX_FINDINGS``."""

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot; empty if there is none that can be read."""
        return self._object(self.stem + SNAPSHOT_SUFFIX)

    def tokens(self) -> dict[str, Any]:
        """Return the list of keys; empty if there is none that can be read."""
        return self._object(self.stem + TOKENS_SUFFIX)

    def log(self) -> list[NumberedEvent]:
        """Return the lines of the log in rising order; lines out of order are left out and reported."""
        name = self.stem + LOG_SUFFIX
        lines = list(self._lines(name))
        kept = longest_rising([line.event.seq for line in lines])
        chosen = set(kept)
        for index, line in enumerate(lines):
            if index not in chosen:
                self.report(name, line.line, f"seq {line.event.seq} is repeated or out of order")
        return [lines[index] for index in kept]

    def contents(self, digests: Collection[str]) -> Iterator[bytes]:
        """Yield the files that the session's prompts name; those whose content does not match are reported.

        Nothing else in their folder is read, however many files there are. One that is missing is not reported: its
        prompt can be read, but not resent.
        """
        folder = Path(self.stem + FILES_SUFFIX)
        try:
            opened = Directory(self.folder / folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self.report(str(folder), 0, _error_text(error))
            return
        for digest in sorted(digests):
            if not _DIGEST.fullmatch(digest) or opened.find(digest) is None:
                continue
            content = opened.read(digest, MAX_FILE_BYTES + 1)
            if content is None:
                self.report(str(folder / digest), 0, "not a regular file")
            elif hashlib.sha256(content).hexdigest() == digest and media_type_of(content):
                yield content
            else:
                self.report(str(folder / digest), 0, "its content does not match its name")

    def report(self, file: str, line: int, problem: str) -> None:
        """Report something that was left out."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(file, line, problem))
        else:
            self.unlisted += 1

    def _object(self, name: str) -> dict[str, Any]:
        try:
            with self._open(name) as file:
                raw = file.read(MAX_LINE_BYTES + 1)
            document = _json(raw)
        except FileNotFoundError:
            return {}
        except (OSError, BadLine) as error:
            self.report(name, 0, _error_text(error))
            return {}
        if not isinstance(document, dict):
            self.report(name, 0, "not an object")
            return {}
        return document

    def _lines(self, name: str) -> Iterator[NumberedEvent]:
        try:
            file = self._open(name)
        except FileNotFoundError:
            return
        except OSError as error:
            self.report(name, 0, _error_text(error))
            return
        with file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES):
                number += 1
                try:
                    yield NumberedEvent(number, line_to_event(_json(raw)))
                except BadLine as error:
                    problem = str(error)
                    if not raw.endswith(b"\n"):
                        problem = f"incomplete, or too long: {problem}"
                    self.report(name, number, problem)
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(MAX_LINE_BYTES)  # skip the rest of a line that is too long

    def _open(self, name: str) -> BinaryIO:
        """Open a regular file of this folder, never a symlink's target; raises OSError."""
        path = self.folder / name
        # O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise OSError("not a regular file")
        return file


def list_records(folder: Path) -> list[str]:
    """Return the names (without suffix) of the sessions in a folder; raises OSError."""
    stems = set()
    for entry in os.scandir(folder):
        for ending in (LOG_SUFFIX, TOKENS_SUFFIX, SNAPSHOT_SUFFIX):
            if entry.name.endswith(ending) and not entry.name.startswith("."):
                stems.add(entry.name.removesuffix(ending))
                break
    return sorted(stems)


def longest_rising(numbers: Sequence[int]) -> list[int]:
    """Return the indices of the longest strictly rising subsequence; of equal numbers the first counts."""
    # For each length, the subsequence of that length with the smallest end: its last index and last number.
    tails: list[int] = []
    ends: list[int] = []
    before: dict[int, int] = {}
    for index, number in enumerate(numbers):
        place = bisect_left(ends, number)
        if place:
            before[index] = tails[place - 1]
        if place == len(tails):
            tails.append(index)
            ends.append(number)
        elif ends[place] != number:
            tails[place], ends[place] = index, number
    if not tails:
        return []
    index = tails[-1]
    indices = [index]
    while index in before:
        index = before[index]
        indices.append(index)
    return indices[::-1]


def _json(raw: bytes) -> Any:
    """Parse JSON to a value that a database can store; raises BadLine."""
    if len(raw) > MAX_LINE_BYTES:
        raise BadLine("too long")
    brackets = raw.count(b"{") + raw.count(b"[")
    if brackets + raw.count(b",") > MAX_VALUES and _count_values(raw) > MAX_VALUES:
        raise BadLine("too many values")
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise BadLine("not UTF-8") from None
    except (ValueError, RecursionError):
        raise BadLine("not JSON") from None
    if b"\\u" in raw or brackets > MAX_DEPTH:
        return _storable(value, 0)
    return value


def _count_values(raw: bytes) -> int:
    """Return at most how many values a JSON text has: brackets and commas that are not in strings."""
    outside = _STRING.sub(b"", raw)
    return sum(map(outside.count, (b"{", b"[", b",")))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _storable(value: Any, depth: int) -> Any:
    """Return the value without U+0000 and lone surrogates, which databases cannot store."""
    if depth > MAX_DEPTH:
        raise BadLine("nested too deeply")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_storable(name, depth): _storable(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [_storable(inner, depth + 1) for inner in value]
    return value


def _error_text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
