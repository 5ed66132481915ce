"""Deep Agents, ``pip install deepagents-acp``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="deepagents",
    title="Deep Agents",
    argv=("deepagents-acp",),
    supports_session_resume=False,
    replays_on_load=True,
    needs=("deepagents-acp",),
    install="pip install deepagents-acp",
    notes=(
        "Package `deepagents-acp`; offers nothing to take a conversation up with. Measured with 0.0.13. "
        "The test suite runs it."
    ),
)
