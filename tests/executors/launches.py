"""Launches of the real agentctl, and the facts of their rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.process import execution_processes, identity, spawning
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.waiting import PATIENCE, eventually

TOKEN = "a-token-that-is-long-enough"


def row(spec: LaunchSpec, launched: Launched | None = None, **changes: Any) -> ExecutionFacts:
    """Return the execution's facts after ``launched``, or before its launch."""
    facts = ExecutionFacts(
        id=spec.execution_id,
        session_id=spec.session_id,
        task_id=spec.task_id,
        runtime="local_standalone",
        host_id=identity.host_id(),
        agentctl_url="",
        auth_token=spec.auth_token,
        status="ready",
        generation=1,
        repository_path=spec.repository_path,
    )
    if launched is not None:
        facts = replace(
            facts,
            agentctl_url=launched.url,
            pid=launched.pid,
            worktree_path=launched.worktree_path,
            worktree_branch=launched.worktree_branch,
            state=launched.state,
        )
    return replace(facts, **changes)


async def observe(facts: ExecutionFacts, timeout: float = PATIENCE) -> Observation:
    return (await RUNTIME.observe([facts], timeout=timeout, concurrency=5))[facts.id]


def client_of(spec: LaunchSpec, launched: Launched) -> AgentctlClient:
    return AgentctlClient.of(row(spec, launched))


def agentctl_of(launched: Launched) -> identity.ProcessIdentity:
    return identity.ProcessIdentity.from_json(launched.state["process"])


def only_agentctl(execution_id: str) -> identity.ProcessIdentity:
    """Wait until an execution has exactly one agentctl; return it.

    Until a fork of agentctl executes its program, such as git, it looks like a second one.
    """
    found = eventually(lambda: _single_agentctl(execution_id), describe="the execution has exactly one agentctl")
    return found[0]


def _single_agentctl(execution_id: str) -> list[identity.ProcessIdentity]:
    found = execution_processes.find_processes(execution_id).agentctl
    return found if len(found) == 1 else []


def kill(launched: Launched) -> None:
    assert identity.kill_all([agentctl_of(launched)], 10) == []


def leave_a_marked_process(execution_id: str) -> subprocess.Popen[bytes]:
    """Start a process with the execution's marker that outlives its agentctl, as a shell may; return it."""
    environment = spawning.build_environment({}, {EXECUTION_MARKER: execution_id})
    return subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"], env=environment)
