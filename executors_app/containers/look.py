"""One look at the containers of many executions: a single sparse list, and a closer look at those that ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from executors_app.containers import names as docker_names
from executors_app.containers.engine import Engine
from executors_app.containers.shown import Container
from executors_app.domain import ExecutionFacts

ENDED: Final = frozenset({"created", "exited", "dead"})
"""Statuses of a container in which nothing runs."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the engine knows."""

    containers: Mapping[str, Container] = field(default_factory=dict)
    """By execution id; those of no execution that was asked for are left out."""
    engine_id: str = ""


def look(engine: Engine, executions: Sequence[ExecutionFacts]) -> Look:
    """Ask the engine about all of them; blocks, writes nothing. Raises RuntimeUnavailable, EngineRefused."""
    listed = {one.labels.get(docker_names.EXECUTION, ""): one for one in engine.containers(docker_names.ours())}
    found: dict[str, Container] = {}
    for execution in executions:
        container = listed.get(execution.id)
        if container is None or not docker_names.is_owned(container.labels, execution.id, execution.session_id):
            continue
        # A list does not tell how a container ended; between the two calls it may have been removed.
        closely = engine.find(container.id) if container.status in ENDED else container
        if closely is not None:
            found[execution.id] = closely
    absent = len(found) < len(executions)
    return Look(found, engine.identity() if absent else "")
