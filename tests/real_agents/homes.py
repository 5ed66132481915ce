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
    env = {**_minimal(home), "CODEX_PATH": str(CODEX), "MOCK_API_KEY": "dummy"}
    return RealAgent((str(NODE), str(CODEX_ACP)), env, ".codex/sessions/**/*")


def codex_acp_in(home: Path, model_url: str) -> RealAgent:
    """codex-acp on the path of a container that sees ``home`` as its own; it is told everything in its environment."""
    config = json.dumps(tomllib.loads(_CODEX_CONFIG.format(url=model_url)))
    env = {"HOME": str(home), "CODEX_CONFIG": config, "MOCK_API_KEY": "dummy"}
    return RealAgent(("codex-acp",), env, ".codex/sessions/**/*")


def pack_codex_acp(folder: Path) -> Path:
    """Put codex-acp, Node and Codex into ``folder``, to be copied into an image's ``/usr/local/bin``; returns it."""
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
    """claude-agent-acp with its Claude Code, which is told to send nothing but requests to the model."""
    folder = home / ".claude"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"permissions": {"defaultMode": "default"}}))
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1"}
    provider = {"ANTHROPIC_BASE_URL": model_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "dummy"}
    env = {**_minimal(home), **quiet, **provider, "CLAUDE_CODE_EXECUTABLE": str(CLAUDE)}
    return RealAgent((str(NODE), str(CLAUDE_ACP)), env, ".claude/projects/**/*.jsonl")


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
    "claude-agent-acp": claude_agent_acp,
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
"""Their types in ``executors_app.agents``."""


def real_agent(name: str, home: Path, model_url: str) -> RealAgent:
    """The agent ``name`` with a fresh ``home``, or the test is skipped (`tests.services`)."""
    require(name)
    return {**REAL_AGENTS, **FORGETFUL, **OTHERS}[name](home, model_url)
