"""Seeds: the files from which the workspaces of sessions are created."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import orjson

SEED_VERSION: Final = 1
_MAX_LINE_BYTES: Final = 64 << 20

_OWN_FIELDS: Final = ("branch", "refs", "complete", "object_format", "identity", "remotes", "exclude", "base")
_LINKED_FIELDS: Final = ("repository", "existed")


@dataclass(frozen=True, slots=True)
class Seed:
    """The first line of a seed file, which has everything that a sandbox needs to create the workspace of a session.

    One line of JSON, then the bytes of a git pack, which may be empty. The control plane writes it; agentctl reads it
    and creates the workspace with the agent's rights, because the repository belongs to the agent from then on.
    """

    branch: str
    """The workspace's own branch, ``kandev/...``."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Commit by full ref name."""
    objects: tuple[str, ...] = ()
    """Read-only object directories, as the sandbox sees them, that the repository borrows from."""
    complete: bool = False
    """Refs, pack and borrowed objects suffice to create the repository from scratch."""
    object_format: str = "sha1"
    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email`` of commits; either may be missing."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The team's hooks by name. They run in the sandbox only."""
    repository: str = ""
    """Path of a repository outside: the workspace is a linked worktree of it, without isolation.

    If set, of the other fields only ``branch``, ``base`` and ``existed`` are used.
    """
    base: str = ""
    """The branch or commit that the session started from; empty: HEAD. A linked worktree's new branch starts there."""
    existed: bool = False
    """Linked worktree: it was complete once, so a new branch would silently lose work."""

    def to_line(self) -> bytes:
        """Encode the first line of the file, with its line end."""
        names = list(_OWN_FIELDS)
        if self.repository:
            names += _LINKED_FIELDS
        line: dict[str, Any] = {"version": SEED_VERSION}
        line |= {name: getattr(self, name) for name in names}
        line["objects"] = list(self.objects)
        line["hooks"] = {name: base64.b64encode(text).decode("ascii") for name, text in self.hooks.items()}
        return orjson.dumps(line) + b"\n"


def read_seed(file: IO[bytes]) -> Seed:
    """Read the first line and leave the file at the first byte of the pack. Raises ValueError."""
    try:
        line = orjson.loads(file.readline(_MAX_LINE_BYTES))
        if line["version"] != SEED_VERSION:
            raise ValueError(f"The seed has version {line['version']}; this agentctl reads version {SEED_VERSION}.")
        plain = {name: line[name] for name in (*_OWN_FIELDS, *_LINKED_FIELDS) if name in line}
        hooks = {name: base64.b64decode(text, validate=True) for name, text in line.get("hooks", {}).items()}
        return Seed(**plain, objects=tuple(line.get("objects", ())), hooks=hooks)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The seed of the workspace cannot be read: {error}") from error


def write_seed(seed: Seed, into: Path) -> None:
    """Write a seed without a pack, atomically even with concurrent writers. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=into.parent, prefix=f".{into.name}.", delete=False) as draft:
        try:
            draft.write(seed.to_line())
            draft.flush()
            Path(draft.name).replace(into)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
