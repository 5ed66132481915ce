"""What ships with Kandev or is named by a profile: the demo agent, a chat model, and any other agent."""

import sys
from pathlib import Path

from executors_app.agentctl.protocol import BUILT_IN_AGENT
from executors_app.agents import AgentType

_SCRIPT = Path(__file__).resolve().parent.parent / "demo_agent.py"

AGENT_TYPES = (
    AgentType(
        name="demo",
        title="Demo agent",
        argv=(sys.executable, "-I", str(_SCRIPT)),
        argv_elsewhere=(BUILT_IN_AGENT,),
        replays_on_load=True,
        gone_patterns=(r"conversation \S+ is gone",),
        notes="Needs no key and no network.",
    ),
    AgentType(
        name="custom_acp",
        title="Custom agent (ACP)",
        notes="Any agent that speaks ACP: the profile names the command, and nothing is taken for granted.",
    ),
    AgentType(
        name="openai_chat",
        title="Chat model (OpenAI-compatible API)",
        driver="openai_chat",
        argv=("openai-chat",),  # for the pages: no program is run
        history_context_injection=True,
        replays_on_load=True,
        notes=(
            "No program and no tools: a conversation with a model. The profile's environment names the API: "
            "`OPENAI_BASE_URL` (up to `/v1`), `OPENAI_API_KEY`, and `OPENAI_MODEL` where the profile names no model. "
            "What was said is kept by agentctl beside its journal, not by the provider, so it survives every restart, "
            "and a load is compared with the log as any other."
        ),
    ),
)
