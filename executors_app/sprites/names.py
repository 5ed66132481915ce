"""What a sprite of ours is called and where things are in it; all follows from the ids (rule 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Final

from django.conf import settings

from executors_app import tunnel

PREFIX: Final = "kandev-"
SERVICE: Final = "agentctl"
ROOT = PurePosixPath("/home/sprite", "kandev")
"""Of everything of ours in a sprite."""
HOLD_SOCKET = PurePosixPath("/.sprite/api.sock")
"""Where a sprite is told, from inside, to stay awake."""
_FIRST_PORT: Final = 20_000
_PORTS: Final = 10_000


def name_of(execution_id: str) -> str:
    """Of the sprite of an execution."""
    return f"{PREFIX}{execution_id}"


def execution_of(name: str) -> str:
    """The execution that a sprite was made for."""
    return name.removeprefix(PREFIX)


def root_of(execution_id: str) -> PurePosixPath:
    """Of everything of one execution in its sprite, whose disk outlives every pause."""
    return ROOT / execution_id


def label() -> str:
    """On each sprite of this deployment; another one may share the organisation."""
    place = str(Path(settings.KANDEV_DATA_DIR).resolve())
    return f"{PREFIX}{hashlib.sha256(place.encode()).hexdigest()[:16]}"


def is_ours(labels: Collection[str]) -> bool:
    """Whether a sprite with a name of ours is this deployment's; one without any label is known by its name alone."""
    return not labels or label() in labels


def port_of(execution_id: str) -> int:
    """Where agentctl listens, on the sprite's own loopback."""
    digest = hashlib.sha256(execution_id.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def url_of(execution_id: str) -> str:
    """The row's address: the same in every process, over every pause of the sprite."""
    return f"http://{name_of(execution_id)}{tunnel.SUFFIX}:{port_of(execution_id)}"
