"""Ends and removes containers, on the proof of their names and labels."""

from __future__ import annotations

from typing import Final

from executors_app.containers import names as docker_names
from executors_app.containers.engine import Engine, EngineRefused
from executors_app.containers.look import ENDED
from executors_app.domain import ExecutionFacts, Orphan

_GRACE: Final = 10.0


def end(engine: Engine, execution: ExecutionFacts) -> bool:
    """Stop an execution's container and give its addresses back; False where it is not that. Blocks."""
    name = docker_names.name_of(execution.id)
    container = engine.find(name)
    if container is None:
        return True
    if not docker_names.is_owned(container.labels, execution.id, execution.session_id):
        return False
    if container.status == "paused":
        engine.unpause(container.id)
    engine.stop(container.id, _GRACE)
    left = engine.find(name)
    if left is not None and left.status not in ENDED:
        return False
    engine.drop_network(name, container.id)
    return True


def remove(engine: Engine, orphan: Orphan) -> bool:
    """Stop and remove one, if it still is what it was listed as; True where nothing is left. Blocks."""
    container = engine.find(orphan.id)
    if container is None:
        return True
    owned = docker_names.ours().items() <= container.labels.items()
    if not owned or not orphan.execution_id or docker_names.execution_of(container.labels) != orphan.execution_id:
        return False
    engine.stop(container.id, _GRACE)
    engine.drop_network(container.name, container.id)
    try:
        engine.remove(container.id)
    except EngineRefused:
        return False
    return True
