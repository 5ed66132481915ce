"""Codex through its ACP adapter, ``npm install -g @zed-industries/codex-acp``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="codex",
    title="Codex",
    argv=("codex-acp",),
    replays_on_load=True,
    gone_patterns=(r"Resource not found", r"no rollout found"),
    needs=("codex-acp",),
    install="npm install -g @zed-industries/codex-acp",
    login="codex login",
    key="OPENAI_API_KEY",
    notes=(
        "Package `@zed-industries/codex-acp`; offers load, resume and list. Measured with 0.16.0: keeps its context "
        "over `kill -9`, also in the middle of a turn, and loads it from another directory; the test suite runs it. "
        "Conversations: `~/.codex/sessions/` (`CODEX_HOME` moves them). Login: `OPENAI_API_KEY` or `codex login`."
    ),
    seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
)
