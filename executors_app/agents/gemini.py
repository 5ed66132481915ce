"""Gemini CLI, ``npm install -g @google/gemini-cli``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="gemini",
    title="Gemini CLI",
    argv=("gemini", "--acp"),
    history_context_injection=True,
    replays_on_load=True,
    gone_patterns=(r"No previous sessions found", r"Invalid session identifier"),
    errs_about_gone=True,
    needs=("gemini",),
    install="npm install -g @google/gemini-cli",
    key="GEMINI_API_KEY",
    notes=(
        "Package `@google/gemini-cli`. Measured with 0.61.0: a load within the minute in which the conversation began "
        "says that there is none, a minute later it is there; and a start after a load that was killed may throw "
        "older chats away. Conversations: `~/.gemini/tmp/`, by project. Login: `GEMINI_API_KEY`."
    ),
    seed=SeedClaim(native=False, history=False, notes="boots idle, no context restoration"),
    differs_from_seed=(
        "It has learned `session/load` since. It loses conversations, so the history is told where it did; "
        "either way the receipt says which."
    ),
)
