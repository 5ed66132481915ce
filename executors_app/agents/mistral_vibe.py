"""Mistral Vibe, ``pip install mistral-vibe`` (Python 3.12 or later)."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="mistral_vibe",
    title="Mistral Vibe",
    argv=("vibe-acp",),
    replays_on_load=True,
    gone_patterns=(r"Session not found",),
    needs=("vibe-acp",),
    install="pip install mistral-vibe",
    notes=(
        "Package `mistral-vibe`; offers load, and replays. Measured with 3.0.2: keeps its context over `kill -9`; says "
        "-32602 and *Session not found* of a conversation that is gone; asks for permissions by the id of the tool "
        "call alone. Conversations: `~/.vibe/logs/session/`. Login: `MISTRAL_API_KEY`."
    ),
)
