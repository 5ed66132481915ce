"""One line of the journal: encode any value so that a database can store it, and read it back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

_HEADER: Final = frozenset({"seq", "epoch", "ts", "kind"})
_MAX_DEPTH: Final = 64
_TRUNCATION_MARK: Final = "…"
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE

UNREADABLE: Final = "unreadable"
"""Kind of the placeholder for an unreadable line of a stream; ``text`` is its beginning."""
NUL: Final = b"\\u0000"

_MANY_BRACKETS: Final = 200
_NUMBER: Final = (int, float)
_LAST_TS: Final = 253_402_300_800
"""The end of the year 9999."""

_SMALL_LINE: Final = 1 << 20
_MAX_COMMAS: Final = 1_000_000
_MAX_BRACKETS: Final = 100_000
_MAX_COMMAS_TO_SANITIZE: Final = 100_000


def encode_line(seq: int, epoch: str, ts: float, kind: str, body: Mapping[str, Any]) -> bytes:
    """Encode one line with its newline; accepts any values, and ``body`` cannot override the header."""
    if not _HEADER.isdisjoint(body):
        body = {name: value for name, value in body.items() if name not in _HEADER}
    whole = {"seq": seq, "epoch": epoch, "ts": ts, "kind": str(kind), **body}
    try:
        line = orjson.dumps(whole, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        line = NUL  # take the slow path below
    if NUL in line:
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
