"""An agent type: Heron, an agent that speaks ACP. Put such a file into ``executors_app/agents/``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="heron",
    title="Heron",
    argv=("heron", "--acp"),
    env={"HERON_TELEMETRY": "off"},
    gone_patterns=(r"no such thread",),
    replays_on_load=True,
    install="npm install -g heron-agent",
    login="heron login",
    stores="`~/.heron/threads/`",
    notes="Never asks for permission to read files.",
)
