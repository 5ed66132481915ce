"""GitHub Copilot CLI, ``npm install -g @github/copilot``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="copilot",
    title="GitHub Copilot",
    argv=("copilot", "--acp"),
    needs=("copilot",),
    install="npm install -g @github/copilot",
    login="copilot",
    notes=(
        "Package `@github/copilot`; offers load, list and close (seen with 1.0.102, without a login). What it says of "
        "a conversation that is gone is not known, so a failed load keeps its token and is tried again."
    ),
    seed=SeedClaim(native=True, history=False, notes="`session/load` restores context"),
)
