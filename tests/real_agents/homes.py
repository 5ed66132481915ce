"""A fresh HOME for each real agent, set up for the loopback model; nothing of the caller's own is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services import CODEX_ACP, OPENCODE, require

_CODEX_CONFIG: Final = """\
model = "mock"
model_provider = "mock"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.mock]
name = "Mock"
base_url = "{url}"
wire_api = "responses"
env_key = "MOCK_API_KEY"
request_max_retries = 1
stream_max_retries = 1
[analytics]
enabled = false
"""


@dataclass(frozen=True)
class RealAgent:
    """How to start one: argv, and the whole environment it may have."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def codex_acp(home: Path, model_url: str) -> RealAgent:
    """codex-acp with its configuration in ``home``."""
    folder = home / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(_CODEX_CONFIG.format(url=model_url))
    return RealAgent((str(CODEX_ACP),), {**_minimal(home), "MOCK_API_KEY": "dummy"})


def opencode(home: Path, model_url: str) -> RealAgent:
    """Opencode with its configuration in ``home``; it is told to fetch nothing."""
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": {"baseURL": model_url, "apiKey": "dummy"},
        "models": {"mock": {"name": "mock", "limit": {"context": 100_000, "output": 8_000}}},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "mock/mock",
        "small_model": "mock/mock",
        "enabled_providers": ["mock"],
        "provider": {"mock": provider},
    }
    (folder / "opencode.json").write_text(json.dumps(config))
    switches = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    offline = {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches}
    return RealAgent((str(OPENCODE), "acp"), {**_minimal(home), **offline})


def _minimal(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


REAL_AGENTS: Final[Mapping[str, Callable[[Path, str], RealAgent]]] = {"codex-acp": codex_acp, "opencode": opencode}


def real_agent(name: str, home: Path, model_url: str) -> RealAgent:
    """The agent ``name`` of `REAL_AGENTS` with a fresh ``home``, or the test is skipped (`tests.services`)."""
    require(name)
    return REAL_AGENTS[name](home, model_url)
