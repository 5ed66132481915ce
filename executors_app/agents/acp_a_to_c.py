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
            "Measured with 0.5.17: it loses its conversation on `kill -9` and reports this. The history is then sent "
            "with the next prompt, and the receipt shows this. Covered by the test suite."
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
            "Runs `amp`. From 0.10.0 it offers load and resume and replays what it can (according to its changelog; "
            "not tested). For an unknown conversation it reports only *Invalid params*, which proves nothing, so a "
            "failed load keeps its token."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses its own fork and continue commands"),
        differs_from_seed="The current adapter offers `session/load` and continues the thread by its id.",
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
        notes="Without a token, the history is sent with the next prompt.",
        seed=SeedClaim(native=False, history=True, notes="fresh start, history with the first prompt"),
        differs_from_seed="It supports `session/load` since 0.18.1; the seed's method remains as the fallback.",
    ),
    AgentType(
        name="autohand",
        title="Autohand Code",
        argv=("autohand-acp",),
        install="npm install -g @autohandai/autohand-acp autohand-cli",
        offers=published("0.2.1", "load", "resume", "list", "fork"),
        registry="autohand",
        notes="An adapter for `autohand`. `AUTOHAND_PERMISSION_MODE=external` makes it ask for permission.",
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
            "Requires Node 22 or later. Measured with 0.101.0: keeps its context across `kill -9`, even during a "
            "turn; covered by the test suite. It asks questions only of clients that declare support for them, and "
            "only from 0.43.0 on: the published package of 0.42.0 disables the tool for questions."
        ),
        seed=SeedClaim(native=False, history=False, notes="uses the `--resume` flag of its command line"),
        differs_from_seed="The current adapter offers `session/load`; no command-line flag is needed.",
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
            "Measured with 2.6.0: keeps its context across `kill -9`, even during a turn; covered by the test suite. "
            "The older package `@zed-industries/codex-acp` is no longer maintained; both provide `codex-acp`, and "
            "profiles work with either. It includes its own `codex`; `CODEX_PATH` selects another."
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
