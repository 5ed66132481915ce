"""Qwen Code, ``npm install -g @qwen-code/qwen-code``."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="qwen",
    title="Qwen Code",
    argv=("qwen", "--acp"),
    history_context_injection=True,
    replays_on_load=True,
    gone_patterns=(r"Resource not found: session:",),
    needs=("qwen",),
    install="npm install -g @qwen-code/qwen-code",
    notes=(
        "Package `@qwen-code/qwen-code`; offers load. Measured with 0.15.10: keeps its context over `kill -9`; a load "
        "of a conversation that it does not have, or from another directory, succeeds with an empty one, which the "
        "replay gives away; it claims to resume and refuses. The test suite runs it. 0.24.4 says that it is gone. "
        "Conversations: `~/.qwen/projects/`."
    ),
)
