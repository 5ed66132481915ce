"""fast-agent, ``pip install fast-agent-mcp`` (Python 3.13 or later)."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="fast_agent",
    title="fast-agent",
    argv=("fast-agent-acp",),
    replays_on_load=True,
    gone_patterns=(r"Session not found",),
    needs=("fast-agent-acp",),
    install="pip install fast-agent-mcp",
    notes=(
        "Package `fast-agent-mcp`; offers load, and replays. Measured with 0.10.46: keeps its context over `kill -9`; "
        "says -32002 and *Session not found* of a conversation that is gone. Conversations: `.fast-agent/sessions/` "
        "in the workspace. Models and their keys come from its own configuration."
    ),
)
