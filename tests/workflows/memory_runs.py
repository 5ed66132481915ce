"""Workflow runs in memory: real shells, the real limited process, and fake agents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sessions_app.workflows.engine.records import NodeRecord, NodeState
from sessions_app.workflows.engine.transitions import RunOutcome, advance_run, complete_record
from sessions_app.workflows.language import sandbox
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.loader.loading import load_workflow
from tests.services import ROOT

PATH = "/usr/local/bin:/usr/bin:/bin"
Answer = Callable[[list[str]], str]
"""Returns an agent's answer, given all prompts of its session."""


@dataclass
class Agents:
    """Fake agent sessions; ``prompts`` has those of each, in the order in which the sessions started."""

    answer: Answer = lambda prompts: prompts[-1]
    prompts: dict[str, list[str]] = field(default_factory=dict)

    def work(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = request["sessionId"] or f"session-{len(self.prompts) + 1}"
        self.prompts.setdefault(session, []).append(request["prompt"])
        return {"text": self.answer(self.prompts[session]), "sessionId": session}


def counting(prompts: list[str]) -> str:
    """Answer with a number that grows by one with each prompt, knowing only the prompts of its session."""
    return str(42 + len(prompts)) if "42" in prompts[0] else "I know no number."


@dataclass
class Run:
    """An ended run and its records; ``begun`` has the paths of the requested work, in order."""

    workflow: WorkflowGraph
    outcome: RunOutcome
    records: dict[str, NodeRecord]
    begun: list[str]
    agents: Agents

    def __getitem__(self, path: str) -> NodeRecord:
        return self.records[path]

    @property
    def paths(self) -> set[str]:
        return {path for path, record in self.records.items() if record.state != NodeState.SKIPPED}


def manual_trigger(text: str = "T", **params: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "manual", "text": text, "params": params}


def drive(workflow: WorkflowGraph | str, text: str = "T", *, agents: Agents | None = None, cwd: Path = ROOT) -> Run:
    """Run a workflow to its end, storing all state as JSON between any two steps."""
    loaded = load_workflow(workflow).checked if isinstance(workflow, str) else workflow
    agents = agents or Agents()
    records: dict[str, NodeRecord] = {}
    begun: list[str] = []
    while True:
        step = advance_run(loaded, manual_trigger(text), records)
        records = reload_from_json(records | {record.path: record for record in step.written})
        begun += [record.path for record in step.begun]
        if step.outcome:
            return Run(loaded, step.outcome, records, begun, agents)
        under_way = [record for record in records.values() if record.is_at_work]
        assert under_way or step.is_full, "no work is requested, and the run has not ended"
        for record in under_way:
            result = work(record.request, agents, cwd)
            records[record.path] = complete_record(loaded, record, result, sandbox.run_in_sandbox)


def work(request: Mapping[str, Any], agents: Agents, cwd: Path) -> dict[str, Any]:
    if request["kind"] == "shell":
        return shell(request["script"], request["environment"], cwd / request["cwd"])
    if request["kind"] == "agent":
        return agents.work(request)
    try:
        return {"value": sandbox.run_in_sandbox([{name: request[name] for name in ("operation", "code", "inputs")}])[0]}
    except sandbox.SandboxError as error:
        return {"error": str(error)}


def shell(script: str, environment: Mapping[str, str], cwd: Path) -> dict[str, Any]:
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": PATH, **environment},
        capture_output=True,
        check=False,
        encoding="utf-8",
        cwd=cwd,
        timeout=60,
    )
    return {"stdout": done.stdout, "stderr": done.stderr, "exitCode": done.returncode}


def reload_from_json(records: Mapping[str, NodeRecord]) -> dict[str, NodeRecord]:
    """Return the records as they are read back from storage."""
    rows = json.loads(json.dumps([asdict(record) for record in records.values()]))
    return {row["path"]: NodeRecord(**row | {"state": NodeState(row["state"])}) for row in rows}
