"""Agents that speak ACP, from D to K by their names.

*Published* capabilities are those of the ACP registry's protocol matrix of 2026-08-20, unless the notes say otherwise.
"""

from executors_app.agents import AgentType, SeedClaim, measured, published

AGENT_TYPES = (
    AgentType(
        name="deepagents",
        title="Deep Agents",
        argv=("deepagents-acp",),
        supports_session_resume=False,
        replays_on_load=True,
        install="pip install deepagents-acp",
        offers=measured("0.0.13"),
        registry="deepagents",
        notes="Offers no way to resume a conversation. Measured with 0.0.13; covered by the test suite.",
    ),
    AgentType(
        name="devin",
        title="Devin",
        argv=("devin", "acp"),
        install="curl -fsSL https://cli.devin.ai/install.sh | bash",
        login="devin auth login",
        offers=published("3000.4.25", "load", "list"),
        registry="devin",
    ),
    AgentType(
        name="dimcode",
        title="DimCode",
        argv=("dimcode", "acp"),
        install="npm install -g dimcode",
        offers=published("0.3.16", "load", "resume", "list"),
        registry="dimcode",
    ),
    AgentType(
        name="dirac",
        title="Dirac",
        argv=("dirac", "--acp"),
        install="npm install -g dirac-cli",
        offers=published("0.4.37", "load", "resume"),
        registry="dirac",
    ),
    AgentType(
        name="factory_droid",
        title="Factory Droid",
        argv=("droid", "exec", "--output-format", "acp-daemon"),
        env={"DROID_DISABLE_AUTO_UPDATE": "true", "FACTORY_DROID_AUTO_UPDATE_ENABLED": "false"},
        install="npm install -g droid",
        login="droid",
        key="FACTORY_API_KEY",
        stores="`~/.factory/sessions/`",
        offers=published("0.200.0", "load", "resume", "list"),
        registry="factory-droid",
    ),
    AgentType(
        name="fast_agent",
        title="fast-agent",
        argv=("fast-agent-acp",),
        replays_on_load=True,
        gone_patterns=(r"Session not found",),
        install="pip install fast-agent-mcp",
        stores="`.fast-agent/sessions/` in the workspace",
        registry="fast-agent",
        notes=(
            "Requires Python 3.13 or later. Observed with 0.10.46: keeps its context across `kill -9`, replays on "
            "load, and reports -32002 and *Session not found* for a conversation that is gone. Models and their keys "
            "come from its own configuration."
        ),
    ),
    AgentType(
        name="gemini",
        title="Gemini CLI",
        argv=("gemini", "--acp"),
        history_context_injection=True,
        replays_on_load=True,
        gone_patterns=(r"No previous sessions found", r"Invalid session identifier"),
        errs_about_gone=True,
        install="npm install -g @google/gemini-cli",
        key="GEMINI_API_KEY",
        stores="`~/.gemini/tmp/`, by project",
        offers=published("0.56.0", "load"),
        registry="gemini",
        notes=(
            "Observed with 0.61.0: a load within the first minute of a conversation reports that it does not exist; a "
            "minute later it is found. A start after a killed load may delete older chats."
        ),
        seed=SeedClaim(native=False, history=False, notes="boots idle, no context restoration"),
        differs_from_seed=(
            "It now supports `session/load`. It can lose conversations; the history is then sent instead. The receipt "
            "shows which of the two happened."
        ),
    ),
    AgentType(
        name="copilot",
        title="GitHub Copilot",
        argv=("copilot", "--acp"),
        install="npm install -g @github/copilot",
        login="copilot",
        key="COPILOT_GITHUB_TOKEN",
        offers=published("1.0.80", "load", "list"),
        registry="github-copilot-cli",
        notes="Its error for a conversation that is gone is unknown, so a failed load keeps its token.",
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="glm",
        title="GLM Agent",
        argv=("glm-acp-agent",),
        install="npm install -g glm-acp-agent",
        key="Z_AI_API_KEY",
        offers=published("1.6.0", "load", "resume", "list", "fork"),
        registry="glm-acp-agent",
    ),
    AgentType(
        name="antigravity",
        title="Google Antigravity",
        argv=("agy_acp_server.par", "--uid="),
        install=(
            "curl -fsSLO https://dl.google.com/agy-extensions/releases/linux/agy-acp-server-1.2.1-linux-x86_64.zip"
            " && unzip agy-acp-server-1.2.1-linux-x86_64.zip -d ~/.local/bin"
        ),
        registry="antigravity-acp",
    ),
    AgentType(
        name="goose",
        title="goose",
        argv=("goose", "acp"),
        install="curl -fsSL https://github.com/block/goose/releases/download/stable/download_cli.sh | bash",
        login="goose configure",
        stores="`~/.local/share/goose/sessions/`",
        offers=published("1.46.0", "load", "list"),
        registry="goose",
    ),
    AgentType(
        name="grok",
        title="Grok Build",
        argv=("grok", "agent", "stdio"),
        install="npm install -g @xai-official/grok",
        login="grok login",
        key="XAI_API_KEY",
        offers=published("1.0.7", "load", "resume", "list"),
        registry="grok-build",
    ),
    AgentType(
        name="harn",
        title="Harn",
        argv=("harn", "serve", "acp"),
        install=(
            "curl -fsSL https://github.com/burin-labs/harn/releases/latest/download/"
            "harn-x86_64-unknown-linux-gnu.tar.gz | tar -xz -C ~/.local/bin"
        ),
        offers=published("0.10.105", "load", "resume", "list"),
        registry="harn",
        notes="Runs pipelines from `.harn` files.",
    ),
    AgentType(
        name="hermes",
        title="Hermes Agent",
        argv=("hermes", "acp"),
        install="pip install 'hermes-agent[acp]'",
        login="hermes setup",
        stores="`~/.hermes/state.db`",
        notes=(
            "Observed with 0.19.0: keeps its context across `kill -9` and replays on load. Loading an unknown "
            "conversation succeeds with an empty one, which the replay reveals; the next turn ends in `refusal`."
        ),
    ),
    AgentType(
        name="junie",
        title="Junie",
        argv=("junie", "--acp=true"),
        install="curl -fsSL https://junie.jetbrains.com/install.sh | bash",
        login="junie",
        key="JUNIE_API_KEY",
        offers=published("2913.6.0", "load", "resume", "list", "fork"),
        registry="junie",
    ),
    AgentType(
        name="kilo",
        title="Kilo",
        argv=("kilo", "acp"),
        install="npm install -g @kilocode/cli",
        login="kilo auth login",
        offers=published("7.4.22", "load", "resume", "list", "fork"),
        registry="kilo",
    ),
    AgentType(
        name="kimi",
        title="Kimi Code",
        argv=("kimi", "acp"),
        replays_on_load=True,
        gone_patterns=(r"Unknown sessionId",),
        install="npm install -g @moonshot-ai/kimi-code",
        stores="`~/.kimi-code/sessions/`, by directory",
        offers=measured("2.1.0", "load", "resume", "list", "fork", "close", "delete"),
        registry="kimi",
        notes=(
            "The successor of Kimi CLI, which the registry lists. Requires Node 22.19 or later. Measured with 2.1.0: "
            "keeps its context across `kill -9`, except for the last third of a second, which it has not written to "
            "disk yet; covered by the test suite."
        ),
    ),
    AgentType(
        name="kiro",
        title="Kiro CLI",
        argv=("kiro-cli", "acp"),
        install="curl -fsSL https://cli.kiro.dev/install | bash",
        login="kiro-cli login",
        key="KIRO_API_KEY",
        stores="`~/.kiro/sessions/cli/`",
        offers=published("2", "load", probed=()),
    ),
)
