"""Which time it is that a node runs in its frame: each gate that was not passed has begun those behind it anew."""

from __future__ import annotations

from collections.abc import Mapping

from sessions_app.workflows.graph import Node, Scope
from sessions_app.workflows.nodes.gate import GateSettings
from sessions_app.workflows.records import Record, State, path_of

Records = Mapping[str, Record]


def retries_of(records: Records, scope: Scope, prefix: str, gate: Node) -> list[Record]:
    """Every time that a gate was not passed in a frame, the latest last."""
    settings = (scope.nodes[name].settings for name in scope.gates)
    most = 1 + sum(one.max_retries for one in settings if isinstance(one, GateSettings))
    found = (records.get(path_of(prefix, gate.id, attempt)) for attempt in range(1, most + 1))
    return [record for record in found if record is not None and record.state == State.RETRIED]


def gates_over(scope: Scope, name: str) -> list[Node]:
    """The gates that run this node again."""
    return [scope.nodes[gate] for gate in scope.gates if name in scope.nodes[gate].reset]


def attempt_of(records: Records, scope: Scope, prefix: str, name: str) -> int:
    """The present attempt of a node in a frame, from 1."""
    return 1 + sum(len(retries_of(records, scope, prefix, gate)) for gate in gates_over(scope, name))


def record_of(records: Records, scope: Scope, prefix: str, name: str) -> Record | None:
    """The record of the present attempt, if it has begun."""
    return records.get(path_of(prefix, name, attempt_of(records, scope, prefix, name)))
