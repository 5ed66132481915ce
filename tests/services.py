"""What a machine may lack: a test that needs it is skipped with a reason, or fails where CI promised it.

``KANDEV_REQUIRE_SERVICES=1`` makes a missing service a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests import postgresql
from tests.environment import REQUIRE_SERVICES

ROOT: Final = Path(__file__).resolve().parent.parent
CODEX_ACP: Final = ROOT / "node_modules" / "@zed-industries" / "codex-acp-linux-x64" / "bin" / "codex-acp"
OPENCODE: Final = ROOT / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
_CHROMIUM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def require(name: str) -> None:
    """Go on only if the service ``name`` (a key of `SERVICES`) can be had here."""
    lacking = missing(name)
    if not lacking:
        return
    if os.environ.get(REQUIRE_SERVICES) == "1":
        pytest.fail(f"{name} is required here: {lacking}", pytrace=False)
    pytest.skip(lacking)


@cache
def missing(name: str) -> str:
    """Why ``name`` cannot be had, or the empty text."""
    return SERVICES[name]()


def chromium() -> str | None:
    """The path of an installed Chromium."""
    return next(filter(None, map(shutil.which, _CHROMIUM_NAMES)), None)


def _chromium() -> str:
    return "" if chromium() else "no Chromium is installed"


def _agent(binary: Path) -> Callable[[], str]:
    def look() -> str:
        return "" if binary.exists() else f"{binary.name} is not installed (make agents, on Linux x86-64)"

    return look


def _docker() -> str:
    from tests.docker import engine  # noqa: PLC0415 - not needed by others

    return engine.missing()


def _program(*names: str) -> Callable[[], str]:
    def look() -> str:
        return "" if any(map(shutil.which, names)) else f"{names[0]} is not installed"

    return look


SERVICES: Final[Mapping[str, Callable[[], str]]] = {
    "chromium": _chromium,
    "codex-acp": _agent(CODEX_ACP),
    "opencode": _agent(OPENCODE),
    "docker": _docker,
    "postgres": lambda: "" if postgresql.binaries() else "no PostgreSQL server is installed",
    "redis": _program("redis-server"),
}
