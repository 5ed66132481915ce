"""A fresh HOME for each real agent, set up for the loopback model; nothing of the caller's own is used."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services import (
    CLAUDE,
    CLAUDE_ACP,
    CODEX,
    CODEX_ACP,
    KIMI,
    NODE,
    OPENCODE,
    PYTHON_OF_AGENTS,
    QWEN,
    ROOT,
    require,
)

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
    """The command line of an agent, and its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    keeps: str = ""
    """Glob in its HOME for the files of stored conversations."""
    turn_mark: str = ""
    """Text that follows a completely stored turn."""

    def has_kept(self, word: str) -> bool:
        """Return whether it has stored a turn with ``word``; some agents do so shortly after they have answered."""
        files = Path(self.env["HOME"]).glob(self.keeps)
        kept = (path.read_bytes() for path in files if path.is_file())
        return any(word.encode() in text and self.turn_mark.encode() in text for text in kept)


def codex_acp(home: Path, model_url: str) -> RealAgent:
    """Return codex-acp, with its configuration in ``home``."""
    folder = home / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(_CODEX_CONFIG.format(url=model_url))
    env = {**_minimal(home), "CODEX_PATH": str(CODEX), "MOCK_API_KEY": "dummy"}
    return RealAgent((str(NODE), str(CODEX_ACP)), env, ".codex/sessions/**/*")


def codex_acp_in(home: Path, model_url: str) -> RealAgent:
    """Return codex-acp for a container in which ``home`` is its HOME; all configuration is in its environment."""
    config = json.dumps(tomllib.loads(_CODEX_CONFIG.format(url=model_url)))
    env = {"HOME": str(home), "CODEX_CONFIG": config, "MOCK_API_KEY": "dummy"}
    return RealAgent(("codex-acp",), env, ".codex/sessions/**/*")


def pack_codex_acp(folder: Path) -> Path:
    """Link codex-acp, Node.js and Codex into ``folder``, for an image's ``/usr/local/bin``; return ``folder``."""
    folder.mkdir(parents=True)
    for program, name in ((NODE, "node"), (CODEX, "codex"), (CODEX_ACP, "codex-acp.mjs")):
        os.link(program, folder / name)
    script = folder / "codex-acp"
    script.write_text(
        "#!/bin/sh\nCODEX_PATH=/usr/local/bin/codex exec /usr/local/bin/node /usr/local/bin/codex-acp.mjs\n"
    )
    script.chmod(0o755)
    return folder


def claude_agent_acp(home: Path, model_url: str) -> RealAgent:
    """Return claude-agent-acp with its Claude Code, configured to send only requests to the model."""
    folder = home / ".claude"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"permissions": {"defaultMode": "default"}}))
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
    provider = {"ANTHROPIC_BASE_URL": model_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "dummy"}
    env = {**_minimal(home), **quiet, **provider, "CLAUDE_CODE_EXECUTABLE": str(CLAUDE)}
    return RealAgent((str(NODE), str(CLAUDE_ACP)), env, ".claude/projects/**/*.jsonl")


def codex_cli(home: Path, model_url: str) -> RealAgent:
    """Return the command line of Codex, one process per turn, with its configuration in ``home``."""
    folder = home / ".codex"
    folder.mkdir(parents=True)
    config = _CODEX_CONFIG.replace("check_for_update_on_startup = false\n", "")
    (folder / "config.toml").write_text(config.format(url=model_url))
    return RealAgent((str(CODEX),), {**_minimal(home), "MOCK_API_KEY": "dummy"}, ".codex/sessions/**/*")


def opencode(home: Path, model_url: str) -> RealAgent:
    """Return opencode, with its configuration in ``home``, configured to download nothing."""
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
    """Return kimi-code, with its configuration in ``home``."""
    folder = home / ".kimi-code"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(_KIMI_CONFIG.format(url=model_url))
    argv = (str(NODE), str(KIMI), "acp")
    return RealAgent(argv, _minimal(home), ".kimi-code/sessions/**/wire.jsonl", "prompt.completed")


def qwen_code(home: Path, model_url: str) -> RealAgent:
    """Return qwen-code, with its configuration in ``home``; it reports success for conversations that it lacks."""
    folder = home / ".qwen"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(_QWEN_CONFIG))
    return RealAgent((str(NODE), str(QWEN), "--acp"), {**_minimal(home), **_openai(model_url)}, ".qwen/projects/**/*")


def agentao(home: Path, model_url: str) -> RealAgent:
    """Return agentao, which forgets its conversation when its process is killed."""
    home.mkdir(parents=True)
    program = PYTHON_OF_AGENTS.parent / "agentao"
    return RealAgent((str(program), "--acp", "--stdio"), {**_minimal(home), **_openai(model_url)})


def deepagents(home: Path, model_url: str) -> RealAgent:
    """Return deepagents, which cannot resume a conversation."""
    home.mkdir(parents=True)
    program = ROOT / "tests" / "real_agents" / "deep_agent.py"
    return RealAgent((str(PYTHON_OF_AGENTS), str(program)), {**_minimal(home), **_openai(model_url)})


def _openai(model_url: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": model_url, "OPENAI_MODEL": "mock"}


def _minimal(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}


Maker = Callable[[Path, str], RealAgent]
REAL_AGENTS: Final[Mapping[str, Maker]] = {
    "claude-agent-acp": claude_agent_acp,
    "codex-acp": codex_acp,
    "kimi-code": kimi_code,
    "opencode": opencode,
    "qwen-code": qwen_code,
}
"""Agents that speak ACP and can resume their conversation."""
FORGETFUL: Final[Mapping[str, Maker]] = {"agentao": agentao, "deepagents": deepagents}
"""Agents that speak ACP and cannot resume, whatever they offer."""
OTHERS: Final[Mapping[str, Maker]] = {"codex": codex_cli}
"""Agents with their own protocol."""
AGENT_TYPES: Final[Mapping[str, str]] = {
    "agentao": "agentao",
    "claude-agent-acp": "claude_code",
    "codex": "codex_cli",
    "codex-acp": "codex",
    "deepagents": "deepagents",
    "kimi-code": "kimi",
    "opencode": "opencode",
    "qwen-code": "qwen",
}
"""Their agent types in ``executors_app.agents``."""


def real_agent(name: str, home: Path, model_url: str) -> RealAgent:
    """Return the agent ``name`` with a fresh ``home``; skip the test if it is not installed."""
    require(name)
    return {**REAL_AGENTS, **FORGETFUL, **OTHERS}[name](home, model_url)
