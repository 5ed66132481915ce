"""Where agents of a runtime run, in the words of pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from executors_app.wire.executions import LOCAL

RUNTIME_NAMES: Final[Mapping[str, str]] = {
    LOCAL: "On this machine",
    "kubernetes": "In a Kubernetes cluster",
    "local_docker": "In containers on this machine",
    "remote": "On another machine",
    "remote_docker": "In containers on another machine",
    "sprites": "In sprites",
}


def runtime_name(runtime: str) -> str:
    """Return where agents of a runtime run, in words; the name of a runtime that was added, as a word."""
    return RUNTIME_NAMES.get(runtime) or runtime.replace("_", " ")


def runtime_choice(runtime: str) -> str:
    """Return the same with the code beside it, which programs and configurations use."""
    return f"{runtime_name(runtime)} ({runtime})"
