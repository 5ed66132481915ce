"""Agents that speak ACP, from L to Z by their names.

*Published* capabilities are those of the ACP registry's protocol matrix of 2026-08-20, unless the notes say otherwise.
"""

from executors_app.agents import AgentType, SeedClaim, measured, published

AGENT_TYPES = (
    AgentType(
        name="minion_code",
        title="Minion Code",
        argv=("minion-code", "acp"),
        install="uv tool install minion-code",
        registry="minion-code",
    ),
    AgentType(
        name="mistral_vibe",
        title="Mistral Vibe",
        argv=("vibe-acp",),
        replays_on_load=True,
        gone_patterns=(r"Session not found",),
        install="pip install mistral-vibe",
        login="vibe --setup",
        key="MISTRAL_API_KEY",
        stores="`~/.vibe/logs/session/`",
        registry="mistral-vibe",
        notes=(
            "Requires Python 3.12 or later. Observed with 3.0.2: offers load and replays; keeps its context across "
            "`kill -9`; reports -32602 and *Session not found* for a conversation that is gone; its permission "
            "requests contain only the id of the tool call."
        ),
    ),
    AgentType(
        name="nova",
        title="Nova",
        argv=("nova", "acp"),
        install="npm install -g @compass-ai/nova",
        offers=published("1.1.35", "load", "resume", "list", "fork"),
        registry="nova",
    ),
    AgentType(
        name="opencode",
        title="OpenCode",
        argv=("opencode", "acp"),
        replays_on_load=True,
        gone_patterns=(r'OpenCode service failure.*"service":"session"',),
        install="npm install -g opencode-ai",
        login="opencode auth login",
        stores="`~/.local/share/opencode/opencode.db`",
        offers=measured("1.18.33", "load", "resume", "list", "fork", "close"),
        registry="opencode",
        notes=(
            "Measured with 1.18.33: keeps its context across `kill -9`, even during a turn; uses half a gigabyte of "
            "memory; covered by the test suite."
        ),
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="openhands",
        title="OpenHands",
        argv=("openhands", "acp"),
        install="uv tool install openhands --python 3.12",
        login="openhands",
        stores="`~/.openhands/conversations/`",
        notes=(
            "Observed with 1.16.0: keeps its context across `kill -9` and does not replay it on load; loading an "
            "unknown conversation succeeds, and this cannot be detected; it ignores a cancellation. With "
            "`--override-with-envs` in the profile's arguments, `LLM_API_KEY` and `LLM_MODEL` apply."
        ),
    ),
    AgentType(
        name="pi",
        title="Pi",
        argv=("pi-acp",),
        install="npm install -g pi-acp @earendil-works/pi-coding-agent",
        login="pi",
        stores="`~/.pi/agent/sessions/`",
        offers=published("0.0.33", "load", "list"),
        registry="pi-acp",
        notes="An adapter for `pi`.",
    ),
    AgentType(
        name="poolside",
        title="Poolside",
        argv=("pool", "acp"),
        install="curl -fsSL https://downloads.poolside.ai/pool/install.sh | sh",
        login="pool login",
        offers=published("1.0.16", "load", "list"),
        registry="poolside",
    ),
    AgentType(
        name="qoder",
        title="Qoder CLI",
        argv=("qodercli", "--acp"),
        install="npm install -g @qoder-ai/qodercli",
        login="qodercli login",
        key="QODER_PERSONAL_ACCESS_TOKEN",
        registry="qoder",
    ),
    AgentType(
        name="qwen",
        title="Qwen Code",
        argv=("qwen", "--acp"),
        history_context_injection=True,
        replays_on_load=True,
        gone_patterns=(r"Resource not found: session:",),
        install="npm install -g @qwen-code/qwen-code",
        login="qwen",
        key="OPENAI_API_KEY",
        stores="`~/.qwen/projects/`, by working directory",
        offers=measured("0.15.10", "load", "resume", "list"),
        registry="qwen-code",
        notes=(
            "Measured with 0.15.10: keeps its context across `kill -9`; loading an unknown conversation, or loading "
            "one from another directory, succeeds with an empty one, which the replay reveals; it advertises resume "
            "but refuses it. Covered by the test suite. 0.24.4 reports such a conversation as gone. `OPENAI_BASE_URL` "
            "and `OPENAI_MODEL` select another provider."
        ),
    ),
    AgentType(
        name="sigit",
        title="siGit Code",
        argv=("sigit",),
        install="npm install -g @smbcloud/sigit",
        offers=published("1.5.2", "load", "fork"),
        registry="sigit",
        notes="Can run its models locally.",
    ),
    AgentType(
        name="stakpak",
        title="Stakpak",
        argv=("stakpak", "acp"),
        install="curl -sSL https://stakpak.dev/install.sh | sh",
        login="stakpak auth login",
        key="STAKPAK_API_KEY",
        offers=published("0.3.88", "load"),
        registry="stakpak",
    ),
    AgentType(
        name="vtcode",
        title="VT Code",
        argv=("vtcode", "acp"),
        env={"VT_ACP_ENABLED": "1", "VT_ACP_ZED_ENABLED": "1"},
        install="cargo install vtcode",
        registry="vtcode",
    ),
)
