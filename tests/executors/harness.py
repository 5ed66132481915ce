"""A runtime under test, ways to disturb what it starts, and rows for its executions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from executors_app.agentctl_client.client import AgentctlClient, tls_trust
from executors_app.runtimes import Runtime
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation
from executors_app.wire.launch_tokens import bearer_token
from executors_app.wire.protocol import Job
from tests.executors.launches import TOKEN
from tests.executors.repositories import run_git
from tests.waiting import PATIENCE, eventually_async


class RuntimeHarness(Protocol):
    """A runtime under test."""

    @property
    def runtime(self) -> Runtime:
        """Return the runtime."""
        ...

    @property
    def repository(self) -> Path:
        """Return the repository for which worktrees are made."""
        ...

    @property
    def demo_agent(self) -> list[str]:
        """Return argv of the demo agent on the runtime."""
        ...

    def kill(self, spec: LaunchSpec) -> None:
        """Kill agentctl with SIGKILL, so that nothing of the execution is left."""
        ...

    def silence(self, spec: LaunchSpec) -> AbstractContextManager[None]:
        """Keep agentctl from answering during the block."""
        ...


class RemoteRuntimeHarness(RuntimeHarness, Protocol):
    """A runtime whose workspaces are on another machine, and whose executor has settings."""

    @property
    def config(self) -> dict[str, Any]:
        """Return ``Executor.config``."""
        ...

    def seen(self, path: str) -> Path:
        """Return the path at which this machine sees a file of a workspace."""
        ...

    def git(self, path: str, *arguments: str) -> str:
        """Run git in a worktree on the other machine; return its output."""
        ...

    def forget(self, branch: str, session_id: str) -> None:
        """Delete a branch on the other machine, and git's records of missing worktrees."""
        ...


def config_of(harness: RuntimeHarness) -> dict[str, Any]:
    """Return the settings of the executor; empty if the runtime has none."""
    return dict(getattr(harness, "config", {}))


def seen(harness: RuntimeHarness, launched: Launched) -> Path:
    """Return the worktree as this machine sees it."""
    locate = getattr(harness, "seen", Path)
    found: Path = locate(launched.worktree_path)
    return found


def git_in(harness: RuntimeHarness, launched: Launched, *arguments: str) -> str:
    """Run git in the worktree; return its output."""
    if hasattr(harness, "git"):
        return str(harness.git(launched.worktree_path, *arguments))
    return run_git(Path(launched.worktree_path), *arguments)


def forget(harness: RuntimeHarness, launched: Launched, *, branch: bool) -> None:
    """Remove git's record of a missing worktree, and its branch if ``branch``."""
    name = launched.worktree_branch if branch else ""
    if hasattr(harness, "forget"):
        harness.forget(name, launched.worktree_id)
    run_git(harness.repository, "worktree", "prune")
    if name:
        run_git(harness.repository, "branch", "-D", name)


def spec_for(harness: RuntimeHarness) -> LaunchSpec:
    """Return the spec of a new launch."""
    execution_id, session_id, task_id = (str(uuid.uuid4()) for _ in range(3))
    return LaunchSpec(execution_id, session_id, task_id, str(harness.repository), "", TOKEN, config_of(harness))


def row_of(
    harness: RuntimeHarness, spec: LaunchSpec, launched: Launched | None = None, **changes: Any
) -> ExecutionFacts:
    """Return the execution's facts after ``launched``, or before its launch."""
    facts = ExecutionFacts(
        id=spec.execution_id,
        session_id=spec.session_id,
        task_id=spec.task_id,
        runtime=harness.runtime.name,
        host_id="",
        agentctl_url=launched.url if launched else "",
        auth_token=spec.auth_token,
        status="ready",
        generation=1,
        pid=launched.pid if launched else None,
        container_id=launched.container_id if launched else "",
        repository_path=spec.repository_path,
        worktree_path=launched.worktree_path if launched else "",
        worktree_branch=launched.worktree_branch if launched else "",
        state=launched.state if launched else {},
        config=config_of(harness),
    )
    return replace(facts, **changes)


async def observe_one(harness: RuntimeHarness, facts: ExecutionFacts, timeout: float = PATIENCE) -> Observation:
    """Observe one execution."""
    return (await harness.runtime.observe([facts], timeout=timeout, concurrency=5))[facts.id]


def known(spec: LaunchSpec, launched: Launched) -> LaunchSpec:
    """Return the spec of a later start, with the worktree that the row records."""
    return replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)


def client_of(spec: LaunchSpec, launched: Launched, generation: int = 1) -> AgentctlClient:
    """Return the client of a launched agentctl."""
    trust = tls_trust(spec.config)
    token = bearer_token(spec.auth_token, launched.state)
    return AgentctlClient(launched.url, token, spec.execution_id, generation=generation, trust=trust)


async def ended_job(client: AgentctlClient, job_id: str) -> Job:
    """Wait for the end of a job; return it."""

    async def ended() -> Any:
        answer = await client.job(job_id, wait=20)
        return answer if answer["state"] != "running" else None

    found: Job = await eventually_async(ended, 60, describe="the job has ended")
    return found


async def start_agent(
    harness: RuntimeHarness,
    spec: LaunchSpec,
    launched: Launched,
    launch_id: str,
    token: str | None = None,
    argv: Sequence[str] = (),
    env: Mapping[str, str] = {},
) -> dict[str, Any]:
    """Start the demo agent, or ``argv``; with ``token``, resume its conversation. Return the response."""
    body: dict[str, Any] = {
        "launch_id": launch_id,
        "argv": list(argv or harness.demo_agent),
        "env": dict(env),
        "cwd": launched.workspace_path,
        "driver": "acp",
        "strategy": "native" if token else "fresh",
        "resume_token": token,
        "mcp_servers": [],
        "permission_mode": "ask",
    }
    return await client_of(spec, launched).start_agent(body, 30)
