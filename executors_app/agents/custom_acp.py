"""Any agent that speaks ACP: the profile names the command, and nothing is taken for granted."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="custom_acp",
    title="Custom agent (ACP)",
)
