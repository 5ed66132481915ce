"""Agentao, ``pip install agentao``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="agentao",
    title="Agentao",
    argv=("agentao", "--acp", "--stdio"),
    history_context_injection=True,
    replays_on_load=True,
    gone_patterns=(r"No sessions directory found", r"Session not found"),
    needs=("agentao",),
    install="pip install agentao",
    notes=(
        "Package `agentao`; claims to load. Measured with 0.5.17: what it was told is gone with `kill -9`, and it "
        "says so. The history is then told with the next prompt, and the receipt says that. "
        "The test suite runs it."
    ),
)
