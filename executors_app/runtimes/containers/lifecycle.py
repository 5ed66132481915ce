"""End and remove containers after proof of ownership."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.container import ENDED_STATUSES
from executors_app.runtimes.containers.engine import Engine, EngineRefused
from executors_app.runtimes.containers.helper import MAX_HELPER_SECONDS
from executors_app.runtimes.deployment_labels import deployment_labels
from executors_app.wire.executions import ExecutionFacts, Orphan

_GRACE: Final = 10.0


def list_orphans(engine: Engine, known: Collection[str]) -> list[Orphan]:
    """List our containers whose execution is not in ``known``, and abandoned helpers. Blocks."""
    found = engine.containers(deployment_labels())
    if any(sites.is_helper(one.labels) for one in found):
        oldest = engine.now() - MAX_HELPER_SECONDS
    else:
        oldest = 0.0
    listed = []
    for one in found:
        left = sites.is_helper(one.labels) and one.created < oldest
        execution_id = sites.labelled_execution(one.labels)
        if left or execution_id not in known:
            listed.append(Orphan(id=one.name, execution_id=execution_id, status=one.status, is_helper=left))
    return listed


def end_container(engine: Engine, execution: ExecutionFacts) -> bool:
    """Stop an execution's container and release its addresses; False if it is not that execution's. Blocks."""
    name = sites.container_name(execution.id)
    container = engine.find(name)
    if container is None:
        return True
    if not sites.is_owned(container.labels, execution.id, execution.session_id):
        return False
    if container.status == "paused":
        engine.unpause(container.id)  # frozen processes cannot react to TERM
    engine.stop(container.id, _GRACE)
    left = engine.find(name)
    if left is not None and left.status not in ENDED_STATUSES:
        return False
    engine.drop_network(name, container.id)
    return True


def remove_container(engine: Engine, orphan: Orphan) -> bool:
    """Stop and remove an orphan if it is still what was listed; True if nothing is left. Blocks."""
    container = engine.find(orphan.id)
    if container is None:
        return True
    owned = deployment_labels().items() <= container.labels.items()
    if orphan.is_helper and not sites.is_helper(container.labels):
        return False  # an execution's own container, which its row still needs
    if not owned or not orphan.execution_id or sites.labelled_execution(container.labels) != orphan.execution_id:
        return False
    engine.stop(container.id, _GRACE)
    engine.drop_network(container.name, container.id)
    try:
        engine.remove(container.id)
    except EngineRefused:
        return False
    return True
