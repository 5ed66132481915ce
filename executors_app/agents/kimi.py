"""Kimi Code, ``npm install -g @moonshot-ai/kimi-code`` (Node 22.19 or later)."""

from executors_app.agents import AgentType

AGENT_TYPE = AgentType(
    name="kimi",
    title="Kimi Code",
    argv=("kimi", "acp"),
    replays_on_load=True,
    gone_patterns=(r"Unknown sessionId",),
    needs=("kimi",),
    install="npm install -g @moonshot-ai/kimi-code",
    notes=(
        "Package `@moonshot-ai/kimi-code`; offers load, resume, list, fork, close and delete. Measured with 2.1.0: "
        "keeps its context over `kill -9`, but for what it was told less than a third of a second before, which it "
        "has not written down yet; the test suite runs it. Conversations: `~/.kimi-code/sessions/`, by directory."
    ),
)
