"""The settings of one executor whose sessions run in sprites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class SpritesConfig:
    """The settings of one executor; every one has a default."""

    python: str = ""
    """A Python in the sprite with agentctl's packages; empty: one is prepared, with packages pinned by hash."""


def read_sprites_config(config: Mapping[str, Any]) -> SpritesConfig:
    """Return the checked settings; raises ValueError with one clear sentence."""
    known = [field.name for field in fields(SpritesConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"sprites has no setting {', '.join(unknown)}. Its settings are {', '.join(known)}.")
    read = SpritesConfig(**config)
    if not isinstance(read.python, str) or (read.python and not read.python.startswith("/")):
        raise ValueError(f"python must be the absolute path of a program, not {read.python!r}.")
    return read
