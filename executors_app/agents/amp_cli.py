"""Amp through its own command line, ``npm install -g @sourcegraph/amp``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="amp_cli",
    title="Amp (command line)",
    driver="amp_cli",
    argv=("amp",),
    needs=("amp",),
    install="npm install -g @sourcegraph/amp",
    login="amp login",
    key="AMP_API_KEY",
    notes=(
        "Package `@sourcegraph/amp`, run as `amp --execute --stream-json` and `amp threads continue`: a process per "
        "turn, none in between. Written after its published SDK, not run here: it wants a login. What it says of a "
        "thread that is gone is not known, so a failed turn keeps its token. The model of a profile is its mode "
        "(`smart`, `rush`). Threads are kept by its provider. Login: `AMP_API_KEY` or `amp login`."
    ),
)
