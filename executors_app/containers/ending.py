"""Ends and removes containers, on the proof of their names and labels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from executors_app.containers import names as docker_names
from executors_app.containers.engine import Engine, EngineRefused
from executors_app.containers.helper import LONGEST
from executors_app.containers.look import ENDED
from executors_app.domain import ExecutionFacts, Orphan

_GRACE: Final = 10.0


def orphans(engine: Engine, known: Collection[str]) -> list[Orphan]:
    """Containers of ours whose execution is not among ``known``, and helpers that a kill left behind. Blocks."""
    found = engine.containers(docker_names.ours())
    oldest = engine.now() - LONGEST if any(docker_names.is_helper(one.labels) for one in found) else 0.0
    listed = []
    for one in found:
        left = docker_names.is_helper(one.labels) and one.created < oldest
        execution_id = docker_names.execution_of(one.labels)
        if left or execution_id not in known:
            listed.append(Orphan(id=one.name, execution_id=execution_id, status=one.status, is_helper=left))
    return listed


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
    if orphan.is_helper and not docker_names.is_helper(container.labels):
        return False  # an execution's own container, which its row still needs
    if not owned or not orphan.execution_id or docker_names.execution_of(container.labels) != orphan.execution_id:
        return False
    engine.stop(container.id, _GRACE)
    engine.drop_network(container.name, container.id)
    try:
        engine.remove(container.id)
    except EngineRefused:
        return False
    return True
