"""The seed of a workspace: what the control plane sends into a sandbox so that the workspace can be made there.

A file with one line of JSON, then the bytes of a git pack (possibly none). agentctl reads it; what it describes
is made with the agent's rights, because from then on the repository is the agent's.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import orjson

SEED_VERSION: Final = 1
_LONGEST_LINE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Seed:
    """What a workspace is made of."""

    branch: str
    """The workspace's own branch, ``kandev/...``."""
    refs: Mapping[str, str] = field(default_factory=dict)
    """Commit by full ref name."""
    objects: tuple[str, ...] = ()
    """Read-only object directories, as the sandbox sees them, that the repository borrows from."""
    complete: bool = False
    """Refs, pack and borrowed objects are enough to make the repository from nothing."""
    object_format: str = "sha1"
    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email`` of commits; either may be missing."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The team's hooks by name: they run in the sandbox, and nowhere else."""
    repository: str = ""
    """Not empty: the work tree is a linked one of this repository, which has no isolation. The rest is then unused."""
    base: str = ""
    """Of such a work tree: the branch or commit that a new branch starts from; empty: HEAD."""
    existed: bool = False
    """Of such a work tree: it was complete once, so a new branch would be a silent loss."""

    def to_line(self) -> bytes:
        """The first line of the file, with its line end."""
        told: dict[str, Any] = {
            "version": SEED_VERSION,
            **{name: getattr(self, name) for name in _PLAIN},
            "objects": list(self.objects),
            "hooks": {name: base64.b64encode(text).decode("ascii") for name, text in self.hooks.items()},
        }
        return orjson.dumps(told) + b"\n"


_PLAIN: Final = (
    *("branch", "refs", "complete", "object_format", "identity", "remotes", "exclude"),
    *("repository", "base", "existed"),
)


def read_seed(file: IO[bytes]) -> Seed:
    """Read the first line; the file is then at the first byte of the pack. Raises ValueError."""
    line = file.readline(_LONGEST_LINE)
    try:
        told = orjson.loads(line)
        if told["version"] != SEED_VERSION:
            raise ValueError(f"the seed has version {told['version']}, this agentctl reads {SEED_VERSION}")
        plain = {name: told[name] for name in _PLAIN if name in told}
        hooks = {name: base64.b64decode(text, validate=True) for name, text in told.get("hooks", {}).items()}
        return Seed(**plain, objects=tuple(told.get("objects", ())), hooks=hooks)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the seed of the workspace cannot be read: {error}") from error


def write_seed(seed: Seed, into: Path) -> None:
    """Write a seed without a pack, whole or not at all, whoever else writes one; raises OSError."""
    with tempfile.NamedTemporaryFile(dir=into.parent, prefix=f".{into.name}.", delete=False) as draft:
        try:
            draft.write(seed.to_line())
            draft.flush()
            Path(draft.name).replace(into)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
