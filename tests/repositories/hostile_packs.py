"""Packs and trees that are small as files and enormous when they are unpacked."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.executors.repositories import run_git
from tests.repositories.workspaces import HEAD

BLOB, DELTA = 3, 7
_PIECE = 1 << 20


def entry(kind: int, size: int, compressed: bytes, base: bytes = b"") -> bytes:
    """Return one object in the format of a pack."""
    first, size = size & 15, size >> 4
    head = bytearray([kind << 4 | first])
    while size:
        head[-1] |= 0x80
        head.append(size & 0x7F)
        size >>= 7
    return bytes(head) + base + compressed


def number(value: int) -> bytes:
    """Return a size as deltas have it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zeros(size: int) -> bytes:
    """Return ``size`` zeros, compressed; without ever having them in memory."""
    packer = zlib.compressobj(9)
    pieces = [packer.compress(bytes(min(_PIECE, size - at))) for at in range(0, size, _PIECE)]
    return b"".join([*pieces, packer.flush()])


def pack(objects: Sequence[bytes]) -> bytes:
    """Return a pack of these entries."""
    data = b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big") + b"".join(objects)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def delta_objects(results: int, times: int) -> Iterator[bytes]:
    """Yield a blob of 64 KiB and deltas that each repeat it ``times`` times, with another last byte."""
    base = bytes(1 << 16)
    name = hashlib.sha1(b"blob %d\0" % len(base) + base, usedforsecurity=False).digest()
    yield entry(BLOB, len(base), zlib.compress(base))
    for index in range(results):
        literal = index.to_bytes(4, "big")
        size = len(base) * times + len(literal)
        delta = number(len(base)) + number(size) + b"\x80" * times + bytes([len(literal)]) + literal
        yield entry(DELTA, len(delta), zlib.compress(delta, 9), name)


def blob_name(content_size: int, content: Iterator[bytes]) -> str:
    """Return the id of a blob."""
    digest = hashlib.sha1(b"blob %d\0" % content_size, usedforsecurity=False)
    for piece in content:
        digest.update(piece)
    return digest.hexdigest()


def delta_results(results: int, times: int) -> list[str]:
    """Return the ids of the blobs that ``delta_objects`` describes."""
    base, names = bytes(1 << 16), []
    for index in range(results):
        literal = index.to_bytes(4, "big")
        size = len(base) * times + len(literal)
        names.append(blob_name(size, iter([*[base] * times, literal])))
    return names


def bundle_of(folder: Path, commit: str, objects: Sequence[bytes]) -> Path:
    """Write a bundle of entries that sets the workspace's branch to ``commit``; return its path."""
    path = folder / "hostile.bundle"
    path.write_bytes(f"# v2 git bundle\n{commit} {HEAD}\n\n".encode() + pack(objects))
    return path


def stored_object(kind: int, content: bytes) -> tuple[str, bytes]:
    """Return the id and the entry of a commit (1) or tree (2)."""
    name = {1: b"commit", 2: b"tree", BLOB: b"blob"}[kind]
    digest = hashlib.sha1(b"%s %d\0" % (name, len(content)) + content, usedforsecurity=False).hexdigest()
    return digest, entry(kind, len(content), zlib.compress(content))


def commit_entry(tree: str, parent: str) -> tuple[str, bytes]:
    """Return the id and the entry of a commit."""
    who = "Agent <agent@example.org> 1700000000 +0000"
    text = f"tree {tree}\nparent {parent}\nauthor {who}\ncommitter {who}\n\nWork\n"
    return stored_object(1, text.encode())


def tree_entry(children: Sequence[tuple[str, str, str]]) -> tuple[str, bytes]:
    """Return the id and the entry of a tree of ``(mode, name, id)``, which must be in git's order."""
    return stored_object(2, b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(at) for mode, name, at in children))


def tree_bomb(parent: str, *, depth: int, width: int) -> tuple[str, list[bytes]]:
    """Return the id of a commit with ``width ** depth`` files, and the few entries that describe it."""
    at, blob = stored_object(BLOB, b"x")
    objects, mode = [blob], "100644"
    for _ in range(depth):
        at, tree = tree_entry([(mode, f"{index:02}", at) for index in range(width)])
        objects.append(tree)
        mode = "40000"
    commit, text = commit_entry(at, parent)
    return commit, [*objects, text]


def write_tree_bomb(repository: Path, ref: str, *, depth: int, width: int) -> str:
    """Write a tree bomb into a repository as an agent with access to it would, at ``ref``; return its commit."""
    parent = run_git(repository, "rev-parse", "HEAD")
    commit, objects = tree_bomb(parent, depth=depth, width=width)
    path = repository / "bomb.pack"
    path.write_bytes(pack(objects))
    run_git(repository, "unpack-objects", "-q", stdin=path)
    path.unlink()
    run_git(repository, "update-ref", ref, commit)
    return commit
