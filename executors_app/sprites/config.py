"""What an executor on Sprites may be told: ``Executor.config``, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class SpritesConfig:
    """The settings of one executor; every one has a default."""

    python: str = ""
    """A Python of the sprite's that has what agentctl needs; empty: one is prepared, with packages pinned by hash."""


def read_config(config: Mapping[str, Any]) -> SpritesConfig:
    """The settings; ValueError with one clear sentence for anything that is none."""
    known = [field.name for field in fields(SpritesConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"sprites knows no {', '.join(unknown)}; it knows {', '.join(known)}.")
    read = SpritesConfig(**config)
    if not isinstance(read.python, str) or (read.python and not read.python.startswith("/")):
        raise ValueError(f"python wants the absolute path of a program, not {read.python!r}.")
    return read
