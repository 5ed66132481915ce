"""Amp through its ACP adapter, ``npm install -g amp-acp``."""

from executors_app.agents import AgentType, SeedClaim

AGENT_TYPE = AgentType(
    name="amp",
    title="Amp",
    argv=("amp-acp",),
    needs=("amp-acp",),
    install="npm install -g amp-acp @sourcegraph/amp",
    login="amp login",
    key="AMP_API_KEY",
    notes=(
        "Package `amp-acp`, which runs `amp`; from 0.10.0 on it offers load and resume and replays what it can "
        "(read in its changelog, not run). It says only *Invalid params* of a conversation that it does not have, "
        "which is no proof, so a failed load keeps its token. Login: `AMP_API_KEY` or `amp login`."
    ),
    seed=SeedClaim(native=False, history=False, notes="uses its own fork and continue commands"),
    differs_from_seed="The adapter of today offers `session/load` and continues the thread by its id.",
)
