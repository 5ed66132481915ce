"""Claude Code through its ACP adapter, ``npm install -g @agentclientprotocol/claude-agent-acp``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="claude_code",
    title="Claude Code",
    argv=("claude-agent-acp",),
    gone_patterns=(r"Resource not found", r"No conversation found with session ID"),
    needs=("claude-agent-acp",),
    install="npm install -g @agentclientprotocol/claude-agent-acp",
    login="claude",
    key="ANTHROPIC_API_KEY",
    notes=(
        "Package `@agentclientprotocol/claude-agent-acp`; offers load, resume, list, fork, close and delete (seen with "
        "0.49.0, without a login). Conversations: `~/.claude/projects/`, by working directory."
    ),
    seed=SeedClaim(native=False, history=False, notes="uses the `--resume` flag of its command line"),
    differs_from_seed="The adapter of today offers `session/load`; no flag of the command line is needed.",
)
