"""What the look at a container and the answer of its agentctl say together: alive, dead or unknown."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from executors_app.containers.launch import url_of
from executors_app.containers.look import ENDED, Look
from executors_app.containers.shown import Container
from executors_app.containers.site import Site
from executors_app.domain import ExecutionFacts, Observation, Observed
from executors_app.errors import AgentctlForeign, ExecutorError


async def judge(site: Site, one: ExecutionFacts, known: Look, answer: Any) -> Observation:
    """Of one execution; ``answer`` is its ``protocol.Status``, the error that came instead, or None if not asked."""
    container = known.containers.get(one.id)
    if container is None:
        if not _is_proven_gone(site, one, known.engine_id):
            return unknown("other_host")
        return await _dead(site, one, None, "container_gone")
    if container.status in ENDED:
        why = "out_of_memory" if container.out_of_memory else "container_stopped"
        return await _dead(site, one, container, why)
    if answer is None or isinstance(answer, ExecutorError):
        return unknown(_why(container, answer))
    url = url_of(container, site.host) or ""
    state = {**one.state, "container": container.id}
    return Observation(Observed.ALIVE, report=answer, url=url, seen_at=datetime.now(UTC), state=state)


def unknown(reason: str) -> Observation:
    """Neither alive nor proven dead."""
    return Observation(Observed.UNKNOWN, reason, seen_at=datetime.now(UTC))


def _is_proven_gone(site: Site, one: ExecutionFacts, engine_id: str) -> bool:
    """The engine that had it says that it has it no more; another engine's word is no proof."""
    had = one.state.get("engine")
    return bool(had == engine_id) if had else site.is_gone(one)


async def _dead(site: Site, one: ExecutionFacts, container: Container | None, reason: str) -> Observation:
    try:
        state, why = await asyncio.to_thread(site.workspace_of, one, container)
    except ExecutorError:
        return unknown("runtime_unavailable")
    return Observation(Observed.DEAD, reason, workspace=state, workspace_reason=why, seen_at=datetime.now(UTC))


def _why(container: Container, answer: ExecutorError | None) -> str:
    if container.status != "running":
        return f"container_{container.status}"
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    return "no_answer" if answer is None else str(answer.details.get("reason", answer.code))
