"""Lines of the journal: redact and limit them, encode any value so that a database can store it, and read them back."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import orjson

_HEADER: Final = frozenset({"seq", "epoch", "ts", "kind"})
_NUL: Final = b"\\u0000"
_MAX_DEPTH: Final = 64
_TRUNCATION_MARK: Final = "…"
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


def encode_line(seq: int, epoch: str, ts: float, kind: str, body: Mapping[str, Any]) -> bytes:
    """Encode one line with its newline; accepts any values, and ``body`` cannot override the header."""
    if not _HEADER.isdisjoint(body):
        body = {name: value for name, value in body.items() if name not in _HEADER}
    whole = {"seq": seq, "epoch": epoch, "ts": ts, "kind": str(kind), **body}
    try:
        line = orjson.dumps(whole, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        line = _NUL  # take the slow path below
    if _NUL in line:
        line = orjson.dumps(sanitize(whole), option=orjson.OPT_APPEND_NEWLINE)
    return line


def sanitize(value: Any) -> Any:
    """Return the value as plain JSON: no lone surrogates, no U+0000, no NaN, no number beyond 64 bits."""
    return _to_plain(value, ())


def _to_plain(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Hexadecimal: the interpreter refuses the decimal text of numbers beyond some thousand digits.
        if -(2**63) <= value < 2**64:
            return int(value)
        return hex(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return None
    if isinstance(value, bytes | bytearray):
        return _text(bytes(value).decode("utf-8", "replace"))
    return _container(value, above)


def _container(value: Any, above: tuple[int, ...]) -> Any:
    if id(value) in above or len(above) >= _MAX_DEPTH:
        return _TRUNCATION_MARK
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return {_key(name): _to_plain(item, above) for name, item in value.items()}
    if isinstance(value, Iterable):
        return [_to_plain(item, above) for item in value]
    return _text(f"<{type(value).__name__}>")


def _key(name: Any) -> str:
    plain = _to_plain(name, ())
    if isinstance(plain, str):
        return plain
    return orjson.dumps(plain).decode()


def _text(text: str) -> str:
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\0", "\ufffd")


META_FILE: Final = "meta.json"
ASIDE: Final = "aside"

UNREADABLE: Final = "unreadable"
"""Kind of the placeholder for an unreadable line of a stream; ``text`` is its beginning."""
NUL: Final = b"\\u0000"

_MANY_BRACKETS: Final = 200
_NUMBER: Final = (int, float)
_LAST_TS: Final = 253_402_300_800
"""The end of the year 9999."""
_SEGMENT: Final = re.compile(r"(\d{20})\.jsonl")
_EPOCH: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")


def journal_directory(state_dir: Path) -> Path:
    """Return the journal's directory within a state directory."""
    return state_dir / "journal"


def read_epoch(directory: Path) -> str | None:
    """Return the journal's current epoch; None if there is no readable journal."""
    epoch = read_meta(directory).get("epoch")
    if isinstance(epoch, str) and _EPOCH.fullmatch(epoch):
        return epoch
    return None


def read_meta(directory: Path) -> dict[str, Any]:
    """Return the content of ``meta.json``; empty if it is missing or damaged."""
    try:
        meta = orjson.loads((directory / META_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    if isinstance(meta, dict):
        return meta
    return {}


def read_lines(directory: Path, after: int = 0, epoch: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield every complete line after the cursor ``(epoch, after)``, in order; changes nothing.

    If ``epoch`` is no longer the journal's, its own remaining lines come first (if they were set aside), then all lines
    of the current epoch; each line names its epoch. A torn last line is skipped, and so are lines that are damaged
    or too complex.
    """
    if epoch is not None and epoch != read_epoch(directory):
        if _EPOCH.fullmatch(epoch):
            yield from _iter_lines(directory / ASIDE / epoch, after)
        after = 0
    yield from _iter_lines(directory, after)


def _iter_lines(directory: Path, after: int) -> Iterator[dict[str, Any]]:
    found = list_segments(directory)
    for number, (_, path) in enumerate(found):
        following = found[number + 1][0] if number + 1 < len(found) else sys.maxsize
        if following <= after + 1:
            continue
        with path.open("rb") as file:
            for raw in file:
                line = None if is_too_complex(raw) else parse_line(raw)
                # After a failed sync a segment may end with lines that the next segment repeats: skip them here.
                if line is not None and after < line["seq"] < following:
                    yield line


def list_segments(directory: Path) -> list[tuple[int, Path]]:
    """Return (first seq, path) of each segment, oldest first."""
    if not directory.is_dir():
        return []
    named = ((_SEGMENT.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in named if match)


def segment_path(directory: Path, first_seq: int) -> Path:
    """Return the path of the segment that begins with ``first_seq``."""
    return directory / f"{first_seq:020d}.jsonl"


_SMALL_LINE: Final = 1 << 20
_MAX_COMMAS: Final = 1_000_000
_MAX_BRACKETS: Final = 100_000
_MAX_COMMAS_TO_SANITIZE: Final = 100_000


def is_too_complex(raw: bytes) -> bool:
    """Whether a line has so many values that parsing it would hold up its reader for seconds.

    Decided by characters, before anything is parsed: 64 MiB of text are parsed in 0.3 s, 64 MiB of empty objects take
    2.3 s. What ``sanitize`` has to visit costs ten times as much; lines of agentctl are sanitized already.
    """
    if len(raw) <= _SMALL_LINE:
        return False
    commas = raw.count(b",")
    if commas > _MAX_COMMAS or raw.count(b"[") + raw.count(b"{") > _MAX_BRACKETS:
        return True
    return commas > _MAX_COMMAS_TO_SANITIZE and NUL in raw


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """Parse a line, without what a database cannot store; None if it is torn or damaged."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = orjson.loads(raw)
        if NUL in raw:
            line = sanitize(line)
        if raw.count(b"[") + raw.count(b"{") > _MANY_BRACKETS:
            orjson.dumps(line)  # raises if it is nested too deep for other readers
    except (ValueError, TypeError):
        return None
    return line if is_line(line) else None


def is_line(value: Any) -> bool:
    """Whether a value has the header of a journal line."""
    if not isinstance(value, dict):
        return False
    get = value.get  # no ``match``, which takes five times as long, for each line of every agent
    seq, ts, kind = get("seq"), get("ts"), get("kind")
    if not (isinstance(seq, int) and isinstance(ts, _NUMBER) and isinstance(kind, str)):
        return False
    return (
        isinstance(get("epoch"), str)
        and 0 < seq < 2**63
        and seq is not True
        and 0 <= ts < _LAST_TS
        and kind != UNREADABLE
    )


@dataclass(frozen=True, slots=True)
class SegmentSurvey:
    """How far one segment is readable."""

    next_seq: int
    """The seq after its last good line."""
    end: int
    """The offset after its last good line."""
    damaged: bool
    """Whether a complete line follows a bad one, which is more than a torn tail."""


def survey_segment(
    path: Path, first_seq: int, epoch: str, stop_at: int | None, seen: Callable[[dict[str, Any], int], None]
) -> SegmentSurvey:
    """Read one segment from its start and call ``seen(line, offset)`` with each good line.

    ``stop_at`` is the first seq of the next segment: lines from there on were written again after a failed sync.
    """
    wanted, end = first_seq, 0
    with path.open("rb") as file:
        for raw in file:
            if wanted == stop_at:
                break
            line = parse_line(raw)
            if line is None or line["seq"] != wanted or line.get("epoch") != epoch:
                followed = any(parse_line(other) is not None for other in chain((raw,), file))
                return SegmentSurvey(wanted, end, damaged=followed)
            seen(line, end)
            wanted, end = wanted + 1, end + len(raw)
    return SegmentSurvey(wanted, end, damaged=False)


MIN_TOKEN_LENGTH: Final = 6
"""A shorter id could be an ordinary word and is not redacted."""


def token_fingerprint(token: str) -> str:
    """Return 16 hexadecimal digits that identify a token without revealing it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TokenRedactor:
    """Replaces every known conversation id by its fingerprint."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def add_token(self, token: str | None) -> None:
        """Redact ``token`` from now on."""
        if token and len(token) >= MIN_TOKEN_LENGTH and token not in self._names:
            self._names[token] = f"[conversation {token_fingerprint(token)}]"
            self._names = dict(sorted(self._names.items(), key=lambda pair: len(pair[0]), reverse=True))

    def redact(self, value: Any) -> Any:
        """Return ``value``, any JSON, with all known ids replaced, also in keys."""
        match value:
            case str():
                for token, name in self._names.items():
                    value = value.replace(token, name)
                return value
            case Mapping():
                return {self.redact(key): self.redact(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self.redact(inner) for inner in value]
        return value


TEXT_LIMIT: Final = 2000
"""Characters of a line that are recorded."""
_TAIL_LINES: Final = 20


class RateLimitedLog:
    """Records lines of one source as ``log`` lines at a bounded rate, and counts those it drops (token bucket)."""

    def __init__(
        self,
        record: Callable[..., Any],
        source: str,
        *,
        level: str = "info",
        burst: int = 20,
        per_second: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._record, self._source, self._level = record, source, level
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._allowed, self._asked_at = float(burst), clock()
        self._left_out = self._left_out_bytes = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def put(self, line: bytes, **data: Any) -> None:
        """Record a line, or count it as dropped."""
        text = line[: 4 * TEXT_LIMIT].decode("utf-8", "replace").strip()[:TEXT_LIMIT]
        if not text:
            return
        self._tail.append(text)
        if self._take_allowance():
            self.flush()
            self._record("log", level=self._level, text=text, data={"source": self._source, **data})
        else:
            self._left_out += 1
            self._left_out_bytes += len(line)

    def flush(self) -> None:
        """Record how many lines were dropped, if any."""
        if self._left_out:
            text = f"{self._left_out} more lines of {self._source} ({self._left_out_bytes} bytes) were left out"
            self._left_out = self._left_out_bytes = 0
            self._record("log", level=self._level, text=text, data={"source": self._source})

    def tail(self) -> str:
        """Return the last lines, recorded or dropped."""
        return "\n".join(self._tail)

    def _take_allowance(self) -> bool:
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._asked_at) * self._per_second)
        self._asked_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
