"""Drill: SIGKILL a run in the third of its five iterations, and check how it ends."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import execution_processes, identity
from tests.waiting import eventually
from tests.workflows.deployed_runs import END_STATES, DeployedWorkflows, Run

ITERATIONS: Final = 5
KILLED_IN: Final = 3
KILL_WINDOW: Final = 1.5
"""Seconds within which the kill happens, while the iteration's agent and shell work."""
WORKFLOW: Final = """
version: 3
metadata: {name: five iterations}
nodes:
  - id: l
    type: loop
    data:
      maxIterations: 5
      outputs: [{name: last, type: string}]
      dockSlots:
        - {name: i, type: iteration, valueType: number}
        - {name: session, type: feedback, valueType: string}
        - {name: go, type: continue, valueType: boolean}
  - {id: agent, type: agent, parentId: l, data: {runner: demo, prompt: "work 1\\nremember iteration-{{ inputs.n }}",
     inputs: [{name: n, type: number}, {name: sessionId, type: string}]}}
  - {id: shell, type: shell, parentId: l, data: {script: "echo {{ inputs.n }} >> done.txt; sleep 0.3; echo true",
     inputs: [{name: n, type: number}, {name: after}], outputs: [{name: more, type: boolean}]}}
edges:
  - {source: l, target: agent, sourceHandle: "dock:i:output", targetHandle: "input:n"}
  - {source: l, target: agent, sourceHandle: "dock:session:prev", targetHandle: "input:sessionId"}
  - {source: agent, target: l, sourceHandle: "output:sessionId", targetHandle: "dock:session:current"}
  - {source: agent, target: l, sourceHandle: "output:output", targetHandle: "output:last:internal"}
  - {source: l, target: shell, sourceHandle: "dock:i:output", targetHandle: "input:n"}
  - {source: agent, target: shell, sourceHandle: "output:output", targetHandle: "input:after"}
  - {source: shell, target: l, sourceHandle: "output:more", targetHandle: "dock:go:input"}
"""


def drill(deployed: DeployedWorkflows, seed: int) -> list[str]:
    """Run the workflow, kill it at a moment derived from ``seed``, and return the violations."""
    chance = random.Random(seed)
    run = deployed.start(WORKFLOW, name=f"killed, seed {seed}")
    eventually(lambda: _reached(run), timeout=240, describe=f"iteration {KILLED_IN} has begun")
    time.sleep(chance.random() * KILL_WINDOW)
    _kill(deployed, run, with_agentctl=chance.random() < 0.5)
    deployed.deployment.serve()
    resent = _finish(deployed, run)
    return [f"seed {seed}: {what}{' (sent again)' if resent else ''}" for what in violations(run)]


def _reached(run: Run) -> bool:
    return f"l[{KILLED_IN}]/agent" in run.nodes()


def _kill(deployed: DeployedWorkflows, run: Run, *, with_agentctl: bool) -> None:
    """SIGKILL the control plane, and the agent with or without its agentctl; the workspace's agentctl survives."""
    executions = _executions(deployed, run)
    deployed.deployment.kill_server()
    for execution_id in executions:
        found = execution_processes.find_processes(execution_id)
        identity.kill_all([*found.others, *(found.agentctl if with_agentctl else ())], 10)


def _executions(deployed: DeployedWorkflows, run: Run) -> list[str]:
    rows = deployed.deployment.rows(
        "SELECT e.id FROM executors_running e JOIN task_sessions s ON s.id = e.session_id "
        "JOIN workflow_runs r ON r.task_id = s.task_id WHERE r.id = ? AND s.has_agent",
        run.id.replace("-", ""),
    )
    return [_dashed(row["id"]) for row in rows]


def _dashed(raw: str) -> str:
    return f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"


def _finish(deployed: DeployedWorkflows, run: Run) -> bool:
    """Wait for the end and resend a held prompt as a user would; return whether one was held."""
    resent = set[str]()

    def is_over() -> bool:
        document = run.document()
        for row in run.prompts():
            if row["state"] == "held" and row["resent_as_id"] is None and row["message_id"] not in resent:
                resent.add(row["message_id"])
                _send_again(deployed, document, row)
        return bool(document["state"] in END_STATES)

    eventually(is_over, timeout=300, describe=f"run {run.id} has ended: {run.document()}")
    return bool(resent)


def _send_again(deployed: DeployedWorkflows, document: dict[str, Any], row: dict[str, Any]) -> None:
    waiting = [one["path"] for one in document["nodes"] if one["waiting_for"] == "user"]
    assert len(waiting) <= 1, waiting
    path = f"tasks/{document['task_id']}/sessions/{_dashed(row['session_id'])}/prompts/{row['message_id']}/resend/"
    deployed.deployment.api("POST", path, {})


def violations(run: Run) -> list[str]:
    """Return the violations of a run that was killed and has ended."""
    document, nodes = run.document(), run.nodes()
    reports = []
    if document["state"] != "succeeded":
        reports.append(f"it has {document['state']}: {document['error']}")
    wanted = {f"l[{n}]/{node}" for n in range(1, ITERATIONS + 1) for node in ("agent", "shell")}
    if missing := {path for path in wanted if nodes.get(path, {}).get("state") != "succeeded"}:
        reports.append(f"not done: {sorted(missing)}")
    if extra := nodes.keys() - wanted - {"l"} - {f"l[{n}]" for n in range(1, ITERATIONS + 1)}:
        reports.append(f"done beside: {sorted(extra)}")
    if twice := [path for path, number in Counter(one["path"] for one in document["nodes"]).items() if number > 1]:
        reports.append(f"node runs twice: {twice}")
    if len(run.sessions()) != 1:
        reports.append(f"{len(run.sessions())} sessions of agents")
    finished = Counter(row["text"] for row in run.prompts() if row["state"] == "done" and row["kind"] != "continue")
    if again := [text for text, number in finished.items() if number > 1]:
        reports.append(f"prompts done twice: {again}")
    lines = Path(run.workspace()["worktree_path"], "done.txt").read_text().split()
    if lines != [str(n) for n in range(1, ITERATIONS + 1)]:
        reports.append(f"the shells have written {lines}")
    return reports
