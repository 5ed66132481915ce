"""Auggie, the command line of Augment Code, ``npm install -g @augmentcode/auggie``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="auggie",
    title="Auggie",
    argv=("auggie", "--acp"),
    history_context_injection=True,
    needs=("auggie",),
    install="npm install -g @augmentcode/auggie",
    key="AUGMENT_SESSION_AUTH",
    notes=(
        "Package `@augmentcode/auggie`; offers load and list (seen with 0.36.0, without a login). Where there is no "
        "token the conversation is told with the next prompt. Login: `AUGMENT_SESSION_AUTH`."
    ),
    seed=SeedClaim(native=False, history=True, notes="fresh start, history with the first prompt"),
    differs_from_seed="It has learned `session/load` since (0.18.1); the seed's way stays as the second one.",
)
