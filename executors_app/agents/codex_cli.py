"""Codex through its own command line, ``npm install -g @openai/codex``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="codex_cli",
    title="Codex (command line)",
    driver="codex_cli",
    argv=("codex",),
    gone_patterns=(r"no rollout found",),
    needs=("codex",),
    install="npm install -g @openai/codex",
    login="codex login",
    key="CODEX_API_KEY",
    notes=(
        "Package `@openai/codex`, run as `codex exec` and `codex exec resume`: a process per turn, none in between. "
        "Measured with 0.169.0: keeps its context over `kill -9`; the test suite runs it. Nobody can be asked in its "
        "turns: its sandbox decides, `-c sandbox_mode=workspace-write` among the profile's arguments lets it write, "
        "and a profile that approves everything takes the sandbox away. MCP servers come from its own configuration. "
        "Conversations: `~/.codex/sessions/` (`CODEX_HOME` moves them). Login: `CODEX_API_KEY` or `codex login`."
    ),
)
