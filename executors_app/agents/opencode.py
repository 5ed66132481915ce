"""OpenCode, ``npm install -g opencode-ai``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="opencode",
    title="OpenCode",
    argv=("opencode", "acp"),
    replays_on_load=True,
    gone_patterns=(r'OpenCode service failure.*"service":"session"',),
    needs=("opencode",),
    install="npm install -g opencode-ai",
    login="opencode auth login",
    notes=(
        "Package `opencode-ai`; offers load, resume, list, fork and close. Measured with 1.18.33: keeps its context "
        "over `kill -9`, also in the middle of a turn; takes half a gigabyte of memory; the test suite runs it. "
        "Conversations: `~/.local/share/opencode/opencode.db`."
    ),
    seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
)
