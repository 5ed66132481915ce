"""Makes one journal line of anything: whatever an agent says becomes valid JSON that a database can store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

_HEADER: Final = frozenset({"seq", "epoch", "ts", "kind"})
_NUL: Final = b"\\u0000"
_DEEPEST: Final = 64
_CUT: Final = "…"


def encode_line(seq: int, epoch: str, ts: float, kind: str, body: Mapping[str, Any]) -> bytes:
    """One line with its newline; never raises, and ``body`` never overrides the header."""
    header = {"seq": seq, "epoch": epoch, "ts": ts, "kind": str(kind)}
    if not _HEADER.isdisjoint(body):
        body = {name: value for name, value in body.items() if name not in _HEADER}
    try:
        line = orjson.dumps({**header, **body}, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError, RecursionError):
        line = _NUL  # not taken: goes the slow way below
    if _NUL in line:
        line = orjson.dumps({**header, **sanitised(body)}, option=orjson.OPT_APPEND_NEWLINE)
    return line


def sanitised(value: Any) -> Any:
    """The same value as plain JSON: no lone surrogates, no U+0000, no NaN, no number beyond 64 bits."""
    return _plain(value, ())


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else _digits(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return _text(bytes(value).decode("utf-8", "replace"))
    return _container(value, above)


def _container(value: Any, above: tuple[int, ...]) -> Any:
    if id(value) in above or len(above) >= _DEEPEST:
        return _CUT
    above = (*above, id(value))
    if isinstance(value, Mapping):
        return {_key(name): _plain(item, above) for name, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item, above) for item in value]
    return _text(f"<{type(value).__name__}>")


def _key(name: Any) -> str:
    plain = _plain(name, ())
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


def _digits(value: int) -> str:
    # Hexadecimal: the interpreter refuses the decimal text of numbers beyond some thousand digits.
    return hex(value)


def _text(text: str) -> str:
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\0", "\ufffd")
