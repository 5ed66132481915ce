"""Gemini CLI without its ACP, ``npm install -g @google/gemini-cli``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="gemini_cli",
    title="Gemini CLI (command line)",
    driver="gemini_cli",
    argv=("gemini",),
    history_context_injection=True,
    gone_patterns=(r"No previous sessions found", r"Invalid session identifier"),
    needs=("gemini",),
    install="npm install -g @google/gemini-cli",
    key="GEMINI_API_KEY",
    notes=(
        "Package `@google/gemini-cli`, run with `--output-format=stream-json` and `--resume`: a process per turn, none "
        "in between. Measured with 0.61.0: it takes a conversation up in the minute in which it began, too. Nobody can "
        "be asked in its turns: tools that want a permission are not offered to the model, unless the profile approves "
        "everything. A directory must be one that it trusts, or `GEMINI_CLI_TRUST_WORKSPACE=true` be in the profile's "
        "environment. MCP servers come from its own configuration. Conversations: `~/.gemini/tmp/`, by project. Login: "
        "`GEMINI_API_KEY`."
    ),
)
