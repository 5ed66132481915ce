"""Resume a run that has ended: decide which records to drop, so that ``advance_run`` runs those nodes again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sessions_app.workflows.engine.records import ITERATION, NodeRecord, NodeState, node_of_path
from sessions_app.workflows.language.graph import Scope, WorkflowGraph
from sessions_app.workflows.nodes.control_flow import GateSettings

UNFINISHED_STATES: Final = frozenset({NodeState.FAILED, NodeState.CANCELLED, NodeState.RUNNING})
_ITERATION: Final = re.compile(r"(?P<loop>.*)\[(?P<number>\d+)\]\Z")


class NothingToResume(Exception):
    """There is nothing to run again at that place; users see the message."""


def records_to_resume(
    workflow: WorkflowGraph, records: Mapping[str, NodeRecord], path: str = ""
) -> dict[str, NodeRecord]:
    """Return the records to continue with. ``records`` are in the order in which they began.

    ``path`` names the node run to repeat; without it, every failed or cancelled one is repeated. Records that depend
    on a repeated one are dropped, too. The loops and components around it are running again, a loop in the iteration
    that contains it. Raises NothingToResume.
    """
    plan = _ResumePlan(workflow, records)
    for target in plan.targets(path):
        plan.repeat(target)
    return plan.kept


class _ResumePlan:
    def __init__(self, workflow: WorkflowGraph, records: Mapping[str, NodeRecord]):
        self._workflow = workflow
        self._order = {name: number for number, name in enumerate(records)}
        self.kept = dict(records)

    def targets(self, path: str) -> list[str]:
        if path:
            record = self.kept.get(path)
            if record is None or record.kind == ITERATION:
                raise NothingToResume(f"no step ran at “{path}”")
            return [path]
        found = [record.path for record in self.kept.values() if record.state in UNFINISHED_STATES]
        # A failure inside a loop or component fails that, too. Only the innermost is repeated; ``repeat`` reopens the
        # loops and components around it.
        leaves = [target for target in found if not any(_is_below(other, target) for other in found)]
        skipped = [record.path for record in self.kept.values() if record.state == NodeState.SKIPPED]
        if not leaves and not skipped:
            raise NothingToResume("no step has failed or was cancelled")
        return leaves or skipped

    def repeat(self, path: str) -> None:
        """Drop a record, and set what contains it to running."""
        record = self.kept.get(path)
        if record is None:
            return
        if record.kind == ITERATION:
            self._reopen(f"{path}/")
            return
        prefix = _prefix(path)
        first = None
        gate = node_of_path(self._workflow, path).settings
        if isinstance(gate, GateSettings):
            first = self._latest(prefix, gate.retry_target)
        self._drop(first or path)
        self._reopen(prefix)

    def _latest(self, prefix: str, node: str) -> str | None:
        """Return the latest record of a node in a frame: to repeat a gate, the node that it sends back is repeated."""
        return next((path for path in reversed(self._frame(prefix)) if self.kept[path].node == node), None)

    def _frame(self, prefix: str) -> list[str]:
        return [path for path, record in self.kept.items() if _prefix(path) == prefix and record.kind != ITERATION]

    def _scope(self, prefix: str) -> Scope:
        if prefix:
            body = node_of_path(self._workflow, prefix[:-1]).body
        else:
            body = self._workflow.root
        assert body is not None  # noqa: S101  (a record exists inside it)
        return body

    def _drop(self, path: str) -> None:
        """Drop a record with everything inside it, and every record that depends on it."""
        record, prefix = self.kept[path], _prefix(path)
        for dropped in [other for other in self.kept if other == path or _is_below(other, path)]:
            del self.kept[dropped]
        self._drop_followers(record, prefix)

    def _drop_followers(self, record: NodeRecord, prefix: str) -> None:
        scope = self._scope(prefix)
        names = {name for name, needed in scope.waits_for.items() if record.node in needed}
        names |= scope.nodes[record.node].reset  # the nodes that a gate has sent back
        for follower in self._frame(prefix):
            # Nodes that a gate has sent back have several records. Those that began earlier do not depend on this one.
            later = follower in self.kept and self._order[follower] > self._order[record.path]
            if later and self.kept[follower].node in names:
                self._drop(follower)

    def _reopen(self, prefix: str) -> None:
        """Set a frame and everything around it to running, and drop its skipped records."""
        for path in self._frame(prefix):
            if self.kept[path].state == NodeState.SKIPPED:
                del self.kept[path]
        if not prefix:
            return
        owner = prefix[:-1]
        self._set_running(owner)
        iteration = _ITERATION.match(owner)
        if iteration:
            owner, number = iteration["loop"], int(iteration["number"])
            self._set_running(owner, number)
            self._drop_later_iterations(owner, number)
        self._drop_followers(self.kept[owner], _prefix(owner))
        self._reopen(_prefix(owner))

    def _set_running(self, path: str, iteration: int | None = None) -> None:
        record = self.kept[path]
        if iteration is None:
            iteration = record.iteration
        self.kept[path] = replace(record, state=NodeState.RUNNING, outputs={}, error="", iteration=iteration)

    def _drop_later_iterations(self, loop: str, number: int) -> None:
        for path in list(self.kept):
            if not path.startswith(f"{loop}["):
                continue
            iteration = _ITERATION.match(path.removeprefix(loop).partition("/")[0])
            if iteration and int(iteration["number"]) > number:
                del self.kept[path]


def _prefix(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return f"{head}{slash}"


def _is_below(path: str, ancestor: str) -> bool:
    return path.startswith((f"{ancestor}/", f"{ancestor}["))
