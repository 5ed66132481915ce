"""The demo agent that ships with Kandev: it needs no key and no network."""

import sys
from pathlib import Path

from executors_app.agentctl.protocol import BUILT_IN_AGENT
from executors_app.agents import AgentType

_SCRIPT = Path(__file__).resolve().parent.parent / "demo_agent.py"

AGENT_TYPE = AgentType(
    name="demo",
    title="Demo agent",
    argv=(sys.executable, "-I", str(_SCRIPT)),
    argv_elsewhere=(BUILT_IN_AGENT,),
    replays_on_load=True,
    gone_patterns=(r"conversation \S+ is gone",),
)
