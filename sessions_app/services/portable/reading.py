"""Reading a portable record that may be damaged, foreign or hostile: what can be told is told, the rest is reported."""

from __future__ import annotations

import json
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from sessions_app.domain.portable.lines import BadLine, LogEvent, event_of
from sessions_app.services.portable.record import LOG, SNAPSHOT, TOKENS

LONGEST_LINE: Final = 64 * 1024 * 1024
"""Bytes of a line, and of a snapshot."""
DEEPEST: Final = 64
"""Levels of a JSON value."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was left out, and where."""

    file: str
    line: int
    """0: the file as a whole."""
    problem: str


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event with its place in the file."""

    line: int
    event: LogEvent


@dataclass
class Reader:
    """The files of one session, and what was wrong with them."""

    folder: Path
    stem: str
    """What the files are named by."""
    findings: list[Finding] = field(default_factory=list)

    def snapshot(self) -> dict[str, Any]:
        """The snapshot; empty where there is none to be read."""
        return self._object(self.stem + SNAPSHOT)

    def tokens(self) -> dict[str, Any]:
        """The list of keys; empty where there is none to be read."""
        return self._object(self.stem + TOKENS)

    def log(self) -> list[Numbered]:
        """The lines of the log, each behind the other; what stands out of its order is left out."""
        name = self.stem + LOG
        lines = list(self._lines(name))
        kept = rising([line.event.seq for line in lines])
        chosen = set(kept)
        for index, line in enumerate(lines):
            if index not in chosen:
                self.report(name, line.line, f"seq {line.event.seq} again, or out of its order")
        return [lines[index] for index in kept]

    def report(self, file: str, line: int, problem: str) -> None:
        """Say what was left out."""
        self.findings.append(Finding(file, line, problem))

    def _object(self, name: str) -> dict[str, Any]:
        try:
            with self._open(name) as file:
                raw = file.read(LONGEST_LINE + 1)
            told = _json(raw)
        except FileNotFoundError:
            return {}
        except (OSError, BadLine) as error:
            self.report(name, 0, _words(error))
            return {}
        if not isinstance(told, dict):
            self.report(name, 0, "no object")
            return {}
        return told

    def _lines(self, name: str) -> Iterator[Numbered]:
        try:
            file = self._open(name)
        except FileNotFoundError:
            return
        except OSError as error:
            self.report(name, 0, _words(error))
            return
        with file:
            number = 0
            while raw := file.readline(LONGEST_LINE):
                number += 1
                try:
                    yield Numbered(number, event_of(_json(raw)))
                except BadLine as error:
                    whole = raw.endswith(b"\n")
                    self.report(name, number, str(error) if whole else f"torn, or too long: {error}")
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LONGEST_LINE)  # the rest of what is too long

    def _open(self, name: str) -> BinaryIO:
        """An ordinary file of this very folder, never what a link leads to; raises OSError."""
        path = self.folder / name
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise OSError("no ordinary file")
        return file


def records_in(folder: Path) -> list[str]:
    """What the sessions in a folder are named by; raises OSError."""
    stems = set()
    for entry in os.scandir(folder):
        for ending in (LOG, TOKENS, SNAPSHOT):
            if entry.name.endswith(ending) and not entry.name.startswith("."):
                stems.add(entry.name.removesuffix(ending))
                break
    return sorted(stems)


def rising(numbers: Sequence[int]) -> list[int]:
    """Indices of the longest strictly rising part of ``numbers``; of equal ones the first."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, number in enumerate(numbers):
        place = bisect_left(ends, number)
        before.append(tails[place - 1] if place else -1)
        if place == len(tails):
            tails.append(index)
            ends.append(number)
        elif ends[place] != number:
            tails[place], ends[place] = index, number
    found = []
    index = tails[-1] if tails else -1
    while index >= 0:
        found.append(index)
        index = before[index]
    return found[::-1]


def _json(raw: bytes) -> Any:
    """A JSON value that a database can store; BadLine for anything else."""
    if len(raw) > LONGEST_LINE:
        raise BadLine("too long")
    try:
        value = json.loads(raw.decode(), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise BadLine("no UTF-8") from None
    except (ValueError, RecursionError):
        raise BadLine("no JSON") from None
    if b"\\u" in raw or raw.count(b"{") + raw.count(b"[") > DEEPEST:
        return _storable(value, 0)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _storable(value: Any, depth: int) -> Any:
    """The value without U+0000 and halves of characters, which no database stores."""
    if depth > DEEPEST:
        raise BadLine("nested too deeply")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if isinstance(value, dict):
        return {_storable(name, depth): _storable(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_storable(one, depth + 1) for one in value]
    return value


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
