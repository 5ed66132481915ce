"""The ACP server of deepagents with the loopback model; run by the Python of ``.venv-agents``."""

import asyncio
import os
from pathlib import Path

from acp import run_agent
from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from deepagents_acp.server import AgentServerACP
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver

model = ChatOpenAI(model="mock", base_url=os.environ["OPENAI_BASE_URL"], api_key="dummy")
backend = LocalShellBackend(root_dir=Path.cwd())
agent = create_deep_agent(model, checkpointer=MemorySaver(), backend=backend, interrupt_on={"execute": True})
asyncio.run(run_agent(AgentServerACP(agent)))
