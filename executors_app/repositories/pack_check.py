"""Sum the sizes of a pack's objects as git will unpack them, before git unpacks any: a program of its own.

A pack of a few hundred bytes can describe gigabytes: deflate shrinks zeros a thousandfold, and a delta of a few bytes
can copy its base again and again. The pack is read once, in pieces of limited size; the size that a delta results in
stands at its beginning. Nothing is resolved or kept, so time and memory depend on the limits alone.

It runs under limits, as ``python -I -S pack_check.py OFFSET OBJECTS OBJECT_BYTES TOTAL_BYTES DIGEST_BYTES`` with the
pack on stdin, imports only the standard library, and prints one JSON object: ``objects`` and ``bytes``, or
``refused`` with one of the reasons below.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

DAMAGED: Final = "damaged"
OBJECT: Final = "object"
STRUCTURE: Final = "structure"
TOTAL: Final = "total"
OBJECTS: Final = "objects"
STRUCTURE_BYTES: Final = 32 << 20
"""Largest commit, tree or tag that is stored whole, in bytes; git reads these into memory."""
_CHUNK: Final = 1 << 14
_PIECE: Final = 1 << 20
_HEADER: Final = 12
_COMMIT, _TREE, _BLOB, _TAG, _OFFSET_DELTA, _BASE_DELTA = 1, 2, 3, 4, 6, 7
_STRUCTURES: Final = {_COMMIT, _TREE, _TAG}
_DELTAS: Final = {_OFFSET_DELTA, _BASE_DELTA}
_SIZES_AT_MOST: Final = 20
"""Bytes of the two sizes at the beginning of a delta."""


class Refused(Exception):
    """The pack is damaged or beyond a limit; the argument is the reason."""


class PackReader:
    """Reads a file from a position in chunks."""

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._place = offset
        self._data = b""
        self._at = 0

    def byte(self) -> int:
        """Return the next byte."""
        if self._at == len(self._data):
            self._fill()
        value = self._data[self._at]
        self._at += 1
        return value

    def skip(self, count: int) -> None:
        """Skip bytes."""
        while count:
            if self._at == len(self._data):
                self._fill()
            step = min(count, len(self._data) - self._at)
            self._at += step
            count -= step

    def inflate(self, limit: int) -> Iterator[bytes]:
        """Yield the inflated pieces of the zlib stream that begins here; raises Refused beyond ``limit`` bytes."""
        stream = zlib.decompressobj()
        total = 0
        while not stream.eof:
            given = stream.unconsumed_tail
            if not given:
                if self._at == len(self._data):
                    self._fill()
                given = self._data[self._at :]
                self._at = len(self._data)
            piece = stream.decompress(given, _PIECE)
            total += len(piece)
            if total > limit:
                raise Refused(DAMAGED)
            yield piece
        self._at = len(self._data) - len(stream.unused_data)

    def _fill(self) -> None:
        self._data = os.pread(self._descriptor, _CHUNK, self._place)
        self._place += len(self._data)
        self._at = 0
        if not self._data:
            raise Refused(DAMAGED)


def measure(
    descriptor: int, offset: int, *, objects: int, object_bytes: int, total_bytes: int, digest_bytes: int
) -> tuple[int, int]:
    """Return the number of objects of the pack at ``offset``, and the sum of their sizes; raises Refused.

    A delta counts with its own size and the size of its result: git holds both.
    """
    reader = PackReader(descriptor, offset)
    header = bytes(reader.byte() for _ in range(_HEADER))
    count = int.from_bytes(header[8:], "big")
    if header[:4] != b"PACK" or header[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        raise Refused(DAMAGED)
    if count > objects:
        raise Refused(OBJECTS)
    total = 0
    for _ in range(count):
        total += _measure_object(reader, object_bytes, total_bytes - total, digest_bytes)
    return count, total


def _measure_object(reader: PackReader, object_bytes: int, left: int, digest_bytes: int) -> int:
    kind, size = _read_header(reader)
    _check_size(kind, size, object_bytes, left)
    if kind == _OFFSET_DELTA:
        while reader.byte() & 0x80:
            pass
    elif kind == _BASE_DELTA:
        reader.skip(digest_bytes)
    beginning, inflated = b"", 0
    for piece in reader.inflate(size):
        inflated += len(piece)
        if len(beginning) < _SIZES_AT_MOST:
            beginning += piece[:_SIZES_AT_MOST]
    if inflated != size:
        raise Refused(DAMAGED)
    if kind not in _DELTAS:
        return size
    result = _result_size(beginning)
    _check_size(kind, result, object_bytes, left - size)
    return size + result


def _check_size(kind: int, size: int, object_bytes: int, left: int) -> None:
    if kind not in _STRUCTURES and kind not in _DELTAS and kind != _BLOB:
        raise Refused(DAMAGED)
    if kind in _STRUCTURES and size > STRUCTURE_BYTES:
        raise Refused(STRUCTURE)
    if size > object_bytes:
        raise Refused(OBJECT)
    if size > left:
        raise Refused(TOTAL)


def _read_header(reader: PackReader) -> tuple[int, int]:
    """Return the kind of an object and its inflated size."""
    byte = reader.byte()
    kind, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 0x80:
        byte = reader.byte()
        size |= (byte & 0x7F) << shift
        shift += 7
        if shift > 64:
            raise Refused(DAMAGED)
    return kind, size


def _result_size(beginning: bytes) -> int:
    """Return the second of the two sizes at the beginning of a delta: that of its result."""
    sizes, at = [], 0
    for _ in range(2):
        size, at = _read_number(beginning, at)
        sizes.append(size)
    return sizes[1]


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, lowest first, and where it ends."""
    number, shift, more = 0, 0, True
    while more:
        if at == len(data) or shift > 64:
            raise Refused(DAMAGED)
        number |= (data[at] & 0x7F) << shift
        more = data[at] > 0x7F
        shift += 7
        at += 1
    return number, at


def main(arguments: Sequence[str]) -> None:
    """Measure the pack on stdin and print the result."""
    offset, objects, object_bytes, total_bytes, digest_bytes = map(int, arguments)
    try:
        count, total = measure(
            sys.stdin.fileno(),
            offset,
            objects=objects,
            object_bytes=object_bytes,
            total_bytes=total_bytes,
            digest_bytes=digest_bytes,
        )
    except (Refused, zlib.error) as error:
        reason = error.args[0] if isinstance(error, Refused) else DAMAGED
        sys.stdout.write(json.dumps({"refused": reason}))
        return
    sys.stdout.write(json.dumps({"objects": count, "bytes": total}))


if __name__ == "__main__":
    main(sys.argv[1:])
