"""What the look at a container and the answer of its agentctl say together: alive, dead or unknown."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from executors_app import local_disk
from executors_app.agentctl import identity
from executors_app.containers.engine import Container
from executors_app.containers.launch import url_of
from executors_app.containers.look import ENDED, Look
from executors_app.domain import ExecutionFacts, Observation, Observed
from executors_app.errors import AgentctlForeign, ExecutorError


async def judge(one: ExecutionFacts, known: Look, answer: Any) -> Observation:
    """Of one execution; ``answer`` is its ``protocol.Status``, the error that came instead, or None if not asked."""
    container = known.containers.get(one.id)
    if container is None:
        return await _dead(one, "container_gone") if _is_proven_gone(one, known.engine_id) else unknown("other_host")
    if container.status in ENDED:
        return await _dead(one, "out_of_memory" if container.out_of_memory else "container_stopped")
    if answer is None or isinstance(answer, ExecutorError):
        return unknown(_why(container, answer))
    url = url_of(container) or ""
    state = {**one.state, "container": container.id} if url != one.agentctl_url else None
    return Observation(Observed.ALIVE, report=answer, url=url, seen_at=datetime.now(UTC), state=state)


def unknown(reason: str) -> Observation:
    """Neither alive nor proven dead."""
    return Observation(Observed.UNKNOWN, reason, seen_at=datetime.now(UTC))


def _is_proven_gone(one: ExecutionFacts, engine_id: str) -> bool:
    """The engine that had it says that it has it no more; another engine's word is no proof."""
    had = one.state.get("engine")
    if had:
        return bool(had == engine_id)
    return one.host_id in {"", identity.host_id()} or local_disk.is_known_here(one)


async def _dead(one: ExecutionFacts, reason: str) -> Observation:
    state, why = await asyncio.to_thread(local_disk.workspace_of, one)
    return Observation(Observed.DEAD, reason, workspace=state, workspace_reason=why, seen_at=datetime.now(UTC))


def _why(container: Container, answer: ExecutorError | None) -> str:
    if container.status != "running":
        return f"container_{container.status}"
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    return "no_answer" if answer is None else str(answer.details.get("reason", answer.code))
