"""A minimal agentctl, as far as an agent sees it: ``parent.py HOME BEHAVIOUR``.

Starts the agent under a guard, sends ``initialize``, and writes ``HOME/parent.json`` with the identities of this
process, the guard and the agent. When the agent's whole process tree has ended, for whatever reason, it writes the exit
code to ``HOME/ended.json``. It runs until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from executors_app.agentctl.process.agent_process import AgentProcess
from executors_app.machine.process import identity
from executors_app.wire.protocol import EXECUTION_MARKER

ROOT = Path(__file__).resolve().parents[2]


async def main(home: Path, behaviour: str) -> None:
    identity.enter_group(home.name)
    argv = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", behaviour, "--home", str(home)]
    marker = {EXECUTION_MARKER: home.name}
    agent = await AgentProcess.spawn(argv, {"PYTHONPATH": str(ROOT)}, "/", marker, lambda *_, **__: None)
    await agent.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}\n')
    await agent.stdout.read()
    found = identity.read_stat(agent.pid)
    pids = {"parent": os.getpid(), "guard": found.parent if found else 0, "agent": agent.pid}
    _write(home / "parent.json", pids)
    while await agent.stdout.read():
        pass
    _write(home / "ended.json", {"exit_code": await agent.wait()})
    await agent.close()
    await asyncio.to_thread(sys.stdin.read)


def _write(path: Path, value: object) -> None:
    path.with_suffix(".new").write_text(json.dumps(value))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
