"""Agents that speak ACP, from A to C by their names.

*Published* capabilities are those of the ACP registry's protocol matrix of 2026-08-20, unless the notes say otherwise.
"""

from executors_app.agents import AgentType, SeedClaim, measured, published

AGENT_TYPES = (
    AgentType(
        name="agentao",
        title="Agentao",
        argv=("agentao", "--acp", "--stdio"),
        history_context_injection=True,
        replays_on_load=True,
        gone_patterns=(r"No sessions directory found", r"Session not found"),
        install="pip install agentao",
        key="OPENAI_API_KEY",
        stores="`.agentao/` in the workspace",
        offers=measured("0.5.17", "load"),
        notes=(
            "Measured with 0.5.17: what it was told is gone with `kill -9`, and it says so. The history is then told "
            "with the next prompt, and the receipt says that. The test suite runs it."
        ),
    ),
    AgentType(
        name="agoragentic",
        title="Agoragentic",
        argv=("agoragentic-mcp", "--acp"),
        install="npm install -g agoragentic-mcp",
        registry="agoragentic-acp",
        notes="An agent marketplace that invokes paid services.",
    ),
    AgentType(
        name="amp",
        title="Amp",
        argv=("amp-acp",),
        install="npm install -g amp-acp @sourcegraph/amp",
        login="amp login",
        key="AMP_API_KEY",
        stores="at its provider",
        offers=published("0.10.0", "load", "resume", probed=()),
        registry="amp-acp",
        notes=(
            "Runs `amp`; from 0.10.0 on it offers load and resume and replays what it can (read in its changelog, not "
            "run). It says only *Invalid params* of a conversation that it does not have, which is no proof, so a "
            "failed load keeps its token."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses its own fork and continue commands"),
        differs_from_seed="The adapter of today offers `session/load` and continues the thread by its id.",
    ),
    AgentType(
        name="auggie",
        title="Auggie",
        argv=("auggie", "--acp"),
        env={"AUGMENT_DISABLE_AUTO_UPDATE": "1"},
        history_context_injection=True,
        install="npm install -g @augmentcode/auggie",
        login="auggie login",
        key="AUGMENT_SESSION_AUTH",
        offers=published("0.35.0", "load", "list"),
        registry="auggie",
        notes="Where there is no token the conversation is told with the next prompt.",
        seed=SeedClaim(native=False, history=True, notes="fresh start, history with the first prompt"),
        differs_from_seed="It has learned `session/load` since (0.18.1); the seed's way stays as the second one.",
    ),
    AgentType(
        name="autohand",
        title="Autohand Code",
        argv=("autohand-acp",),
        install="npm install -g @autohandai/autohand-acp autohand-cli",
        offers=published("0.2.1", "load", "resume", "list", "fork"),
        registry="autohand",
        notes="An adapter around `autohand`. `AUTOHAND_PERMISSION_MODE=external` lets it ask for permissions.",
    ),
    AgentType(
        name="claude_code",
        title="Claude Code",
        argv=("claude-agent-acp",),
        gone_patterns=(r"Resource not found", r"No conversation found with session ID"),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        login="claude-agent-acp --cli auth login",
        key="ANTHROPIC_API_KEY",
        stores="`~/.claude/projects/`, by working directory",
        offers=measured("0.101.0", "load", "resume", "list", "fork", "close", "delete"),
        minimum={"@agentclientprotocol/claude-agent-acp": "0.43.0"},
        registry="claude-acp",
        notes=(
            "Wants Node 22 or later. Measured with 0.101.0: keeps its context over `kill -9`, also in the middle of a "
            "turn; the test suite runs it. It asks questions only if the client says that it can answer them, and not "
            "before 0.43.0: read in the published packages, of which 0.42.0 disables the tool for them."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses the `--resume` flag of its command line"),
        differs_from_seed="The adapter of today offers `session/load`; no flag of the command line is needed.",
    ),
    AgentType(
        name="cline",
        title="Cline",
        argv=("cline", "--acp"),
        install="npm install -g cline",
        login="cline auth",
        offers=published("3.0.55", "load"),
        registry="cline",
        notes="3.0.65 did not start without a login.",
    ),
    AgentType(
        name="codebuddy",
        title="CodeBuddy Code",
        argv=("codebuddy", "--acp"),
        install="npm install -g @tencent-ai/codebuddy-code",
        login="codebuddy",
        key="CODEBUDDY_API_KEY",
        registry="codebuddy-code",
    ),
    AgentType(
        name="codex",
        title="Codex",
        argv=("codex-acp",),
        replays_on_load=True,
        gone_patterns=(r"Resource not found", r"no rollout found"),
        install="npm install -g @agentclientprotocol/codex-acp",
        login="codex-acp cli login",
        key="OPENAI_API_KEY",
        stores="`~/.codex/sessions/` (`CODEX_HOME` moves them)",
        offers=measured("2.6.0", "load", "resume", "list", "fork", "close", "delete"),
        registry="codex-acp",
        notes=(
            "Measured with 2.6.0: keeps its context over `kill -9`, also in the middle of a turn; the test suite runs "
            "it. The package `@zed-industries/codex-acp` of earlier years is no longer maintained; both provide "
            "`codex-acp`, and profiles work with either. It brings its own `codex`; `CODEX_PATH` names another."
        ),
        seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
    ),
    AgentType(
        name="cortex_code",
        title="Cortex Code",
        argv=("cortex", "acp", "serve"),
        install="curl -LsS https://ai.snowflake.com/static/cc-scripts/install.sh | sh",
        login="cortex",
        registry="cortex-code",
    ),
    AgentType(
        name="corust",
        title="Corust Agent",
        argv=("corust-agent-acp",),
        install=(
            "curl -fsSL https://github.com/Corust-ai/corust-agent-release/releases/latest/download/"
            "agent-linux-x64.tar.gz | tar -xz -C ~/.local/bin"
        ),
        offers=published("0.6.0"),
        registry="corust-agent",
    ),
    AgentType(
        name="crow",
        title="crow-cli",
        argv=("crow-cli", "acp"),
        install="uv tool install crow-cli",
        registry="crow-cli",
    ),
    AgentType(
        name="cursor",
        title="Cursor",
        argv=("cursor-agent", "acp"),
        install="curl https://cursor.com/install -fsS | bash",
        login="cursor-agent login",
        key="CURSOR_API_KEY",
        offers=published("2026.08.11", "load", "list"),
        registry="cursor",
    ),
)
