"""Observe executions in containers: what the engine lists, and what their agentctls answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.container import ENDED_STATUSES, Container
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.containers.launch import container_url
from executors_app.runtimes.containers.sites import Site
from executors_app.runtimes.deployment_labels import deployment_labels
from executors_app.wire.errors import AgentctlForeign, ExecutorError
from executors_app.wire.executions import ExecutionFacts, Observation, Observed


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """The result of listing an engine's containers."""

    containers: Mapping[str, Container] = field(default_factory=dict)
    """Containers by execution id, for the requested executions only."""
    engine_id: str = ""


def list_containers(engine: Engine, executions: Sequence[ExecutionFacts]) -> ContainerListing:
    """List the executions' containers; blocks, writes nothing. Raises RuntimeUnavailable, EngineRefused."""
    listed = {one.labels.get(sites.EXECUTION_LABEL, ""): one for one in engine.containers(deployment_labels())}
    found: dict[str, Container] = {}
    for execution in executions:
        container = listed.get(execution.id)
        if container is None or not sites.is_owned(container.labels, execution.id, execution.session_id):
            continue
        # A list does not show how a container ended, so it is inspected; it may have been removed meanwhile.
        if container.status in ENDED_STATUSES:
            closely = engine.find(container.id)
        else:
            closely = container
        if closely is not None:
            found[execution.id] = closely
    if len(found) < len(executions):
        return ContainerListing(found, engine.identity())
    return ContainerListing(found)


async def judge_container(site: Site, execution: ExecutionFacts, known: ContainerListing, answer: Any) -> Observation:
    """Return the observation of one execution; ``answer`` is its status, the error instead, or None if not polled."""
    container = known.containers.get(execution.id)
    if container is None:
        # Only the engine that ran the container can report its absence; the answer of another engine proves nothing.
        if recorded := execution.state.get("engine"):
            is_absent = recorded == known.engine_id
        else:
            is_absent = site.is_gone(execution)
        if not is_absent:
            return Observation.unknown("other_host")
        return await _dead_observation(site, execution, None, "container_gone")
    if container.status in ENDED_STATUSES:
        why = "container_stopped"
        if container.out_of_memory:
            why = "out_of_memory"
        return await _dead_observation(site, execution, container, why)
    if answer is None or isinstance(answer, ExecutorError):
        return Observation.unknown(_unknown_reason(container, answer))
    url = container_url(container, site.host) or ""
    state = {**execution.state, "container": container.id}
    return Observation(Observed.ALIVE, report=answer, url=url, seen_at=datetime.now(UTC), state=state)


async def _dead_observation(
    site: Site, execution: ExecutionFacts, container: Container | None, reason: str
) -> Observation:
    try:
        state, why = await asyncio.to_thread(site.workspace_state, execution, container)
    except ExecutorError:
        return Observation.unknown("runtime_unavailable")
    return Observation.dead(reason, state, why)


def _unknown_reason(container: Container, answer: ExecutorError | None) -> str:
    if container.status != "running":
        return f"container_{container.status}"
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    if answer is None:
        return "no_answer"
    return str(answer.details.get("reason", answer.code))
