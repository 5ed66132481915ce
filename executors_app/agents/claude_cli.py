"""Claude Code through its own command line, ``npm install -g @anthropic-ai/claude-code``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="claude_cli",
    title="Claude Code (command line)",
    driver="claude_cli",
    argv=("claude",),
    gone_patterns=(r"No conversation found with session ID",),
    needs=("claude",),
    install="npm install -g @anthropic-ai/claude-code",
    login="claude",
    key="ANTHROPIC_API_KEY",
    notes=(
        "Package `@anthropic-ai/claude-code`, run as `claude -p` with `stream-json` both ways: one process for many "
        "turns; permissions are asked through its control protocol. Written after the types of its published SDK "
        "(0.3.330), not run here. It resumes with `--resume`, at the last message of its last finished turn "
        "(`--resume-session-at`), or with all that it has where that turn was not finished. Conversations: "
        "`~/.claude/projects/`, by working directory. Login: `ANTHROPIC_API_KEY`, or `claude` once."
    ),
)
