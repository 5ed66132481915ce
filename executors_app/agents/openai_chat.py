"""A model behind an API of chat completions; agentctl itself speaks to it and keeps what was said."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="openai_chat",
    title="Chat model (OpenAI-compatible API)",
    driver="openai_chat",
    argv=("openai-chat",),  # for the pages: no program is run
    history_context_injection=True,
    replays_on_load=True,
    notes=(
        "No program and no tools: a conversation with a model. The profile's environment names the API: "
        "`OPENAI_BASE_URL` (up to `/v1`), `OPENAI_API_KEY`, and `OPENAI_MODEL` where the profile names no model. "
        "What was said is kept by agentctl beside its journal, not by the provider, so it survives every restart, and "
        "a load is compared with the log as any other."
    ),
)
