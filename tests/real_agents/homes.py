"""A fresh HOME for each real agent, set up for the loopback model; nothing of the caller's own is used."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.services import CODEX, CODEX_ACP, KIMI, NODE, OPENCODE, PYTHON_OF_AGENTS, QWEN, ROOT, require

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


_KIMI_CONFIG: Final = """\
default_model = "mock"
telemetry = false
[providers.mock]
type = "openai"
base_url = "{url}"
api_key = "dummy"
[models.mock]
provider = "mock"
model = "mock"
max_context_size = 100000
"""
_QWEN_CONFIG: Final = {
    "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
    "telemetry": {"enabled": False},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    "model": {"name": "mock"},
}


@dataclass(frozen=True)
class RealAgent:
    """How to start one: argv, and the whole environment it may have."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    keeps: str = ""
    """Where in its HOME it writes conversations down."""
    turn_mark: str = ""
    """What stands there behind a turn that it has written down as a whole."""

    def has_kept(self, word: str) -> bool:
        """Whether it has written down a turn with ``word``; some do so a moment after they have answered."""
        files = Path(self.env["HOME"]).glob(self.keeps)
        kept = (path.read_bytes() for path in files if path.is_file())
        return any(word.encode() in text and self.turn_mark.encode() in text for text in kept)


def codex_acp(home: Path, model_url: str) -> RealAgent:
    """codex-acp with its configuration in ``home``."""
    folder = home / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(_CODEX_CONFIG.format(url=model_url))
    return RealAgent((str(CODEX_ACP),), {**_minimal(home), "MOCK_API_KEY": "dummy"}, ".codex/sessions/**/*")


def codex_acp_in(home: Path, model_url: str) -> RealAgent:
    """codex-acp on the path of a container that sees ``home`` as its own; it is told everything as arguments."""
    settings = _settings(tomllib.loads(_CODEX_CONFIG.format(url=model_url)))
    argv = (CODEX_ACP.name, *(word for setting in settings for word in ("-c", setting)))
    return RealAgent(argv, {"HOME": str(home)}, ".codex/sessions/**/*")


def _settings(table: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """A table of settings as ``key=value``, its keys with those above them."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{above}{key}.")
        else:
            yield f"{above}{key}={json.dumps(value)}"


def codex_cli(home: Path, model_url: str) -> RealAgent:
    """The command line of Codex, a process per turn, with its configuration in ``home``."""
    folder = home / ".codex"
    folder.mkdir(parents=True)
    config = _CODEX_CONFIG.replace("check_for_update_on_startup = false\n", "")
    (folder / "config.toml").write_text(config.format(url=model_url))
    return RealAgent((str(CODEX),), {**_minimal(home), "MOCK_API_KEY": "dummy"}, ".codex/sessions/**/*")


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
    return RealAgent((str(OPENCODE), "acp"), {**_minimal(home), **offline}, ".local/share/opencode/opencode.db*")


def kimi_code(home: Path, model_url: str) -> RealAgent:
    """kimi-code with its configuration in ``home``."""
    folder = home / ".kimi-code"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(_KIMI_CONFIG.format(url=model_url))
    argv = (str(NODE), str(KIMI), "acp")
    return RealAgent(argv, _minimal(home), ".kimi-code/sessions/**/wire.jsonl", "prompt.completed")


def qwen_code(home: Path, model_url: str) -> RealAgent:
    """qwen-code with its configuration in ``home``; it answers success for conversations that it does not have."""
    folder = home / ".qwen"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(_QWEN_CONFIG))
    return RealAgent((str(NODE), str(QWEN), "--acp"), {**_minimal(home), **_openai(model_url)}, ".qwen/projects/**/*")


def agentao(home: Path, model_url: str) -> RealAgent:
    """agentao; what it was told is gone with its process."""
    home.mkdir(parents=True)
    program = PYTHON_OF_AGENTS.parent / "agentao"
    return RealAgent((str(program), "--acp", "--stdio"), {**_minimal(home), **_openai(model_url)})


def deepagents(home: Path, model_url: str) -> RealAgent:
    """deepagents; it offers no way to take a conversation up."""
    home.mkdir(parents=True)
    program = ROOT / "tests" / "real_agents" / "deep_agent.py"
    return RealAgent((str(PYTHON_OF_AGENTS), str(program)), {**_minimal(home), **_openai(model_url)})


def _openai(model_url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": model_url, "OPENAI_MODEL": "mock"}


def _minimal(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


Maker = Callable[[Path, str], RealAgent]
REAL_AGENTS: Final[Mapping[str, Maker]] = {
    "codex-acp": codex_acp,
    "kimi-code": kimi_code,
    "opencode": opencode,
    "qwen-code": qwen_code,
}
"""Those that speak ACP and take their conversation up again."""
FORGETFUL: Final[Mapping[str, Maker]] = {"agentao": agentao, "deepagents": deepagents}
"""Those that speak ACP and do not, whatever they offer."""
OTHERS: Final[Mapping[str, Maker]] = {"codex": codex_cli}
"""Those with a protocol of their own."""


def real_agent(name: str, home: Path, model_url: str) -> RealAgent:
    """The agent ``name`` with a fresh ``home``, or the test is skipped (`tests.services`)."""
    require(name)
    return {**REAL_AGENTS, **FORGETFUL, **OTHERS}[name](home, model_url)
