"""Taking a run up that has ended: which records are forgotten, so that ``advance`` does them again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sessions_app.workflows.engine.records import ITERATION, NodeRecord, NodeState, node_of_path
from sessions_app.workflows.language.graph import Scope, WorkflowGraph
from sessions_app.workflows.nodes.gate import GateSettings

UNFINISHED_STATES: Final = frozenset({NodeState.FAILED, NodeState.CANCELLED, NodeState.RUNNING})
_ITERATION: Final = re.compile(r"(?P<loop>.*)\[(?P<number>\d+)\]\Z")


class NothingToResume(Exception):
    """There is nothing at that place that could be done again; the message is for people."""


def records_to_resume(
    workflow: WorkflowGraph, records: Mapping[str, NodeRecord], path: str = ""
) -> dict[str, NodeRecord]:
    """The records to go on with. ``records`` are in the order of their beginnings; ``path`` is what begins again.

    Without a path everything begins again that has failed or was cancelled. What follows from it is forgotten with
    it; loops and components around it are open again, a loop in the iteration that it lies in.
    """
    taking_up = _ResumePlan(workflow, records)
    for target in taking_up.targets(path):
        taking_up.again(target)
    return taking_up.kept


class _ResumePlan:
    def __init__(self, workflow: WorkflowGraph, records: Mapping[str, NodeRecord]):
        self._workflow = workflow
        self._order = {name: number for number, name in enumerate(records)}
        self.kept = dict(records)

    def targets(self, path: str) -> list[str]:
        if path:
            record = self.kept.get(path)
            if record is None or record.kind == ITERATION:
                raise NothingToResume(f"no node ran at “{path}”")
            return [path]
        found = [one.path for one in self.kept.values() if one.state in UNFINISHED_STATES]
        leaves = [one for one in found if not any(_is_below(other, one) for other in found)]
        skipped = [one.path for one in self.kept.values() if one.state == NodeState.SKIPPED]
        if not leaves and not skipped:
            raise NothingToResume("nothing of it has failed")
        return leaves or skipped

    def again(self, path: str) -> None:
        """Forget a record, and open what lies around it."""
        record = self.kept.get(path)
        if record is None:
            return
        if record.kind == ITERATION:
            self._open(f"{path}/")
            return
        prefix = _prefix(path)
        gate = node_of_path(self._workflow, path).settings
        first = self._latest(prefix, gate.retry_target) if isinstance(gate, GateSettings) else None
        self._forget(first or path)
        self._open(prefix)

    def _latest(self, prefix: str, node: str) -> str | None:
        """A gate decides anew when what it sends back has been done anew."""
        return next((one for one in reversed(self._frame(prefix)) if self.kept[one].node == node), None)

    def _frame(self, prefix: str) -> list[str]:
        return [one for one, record in self.kept.items() if _prefix(one) == prefix and record.kind != ITERATION]

    def _scope(self, prefix: str) -> Scope:
        body = node_of_path(self._workflow, prefix[:-1]).body if prefix else self._workflow.root
        assert body is not None  # noqa: S101  (something ran in it)
        return body

    def _forget(self, path: str) -> None:
        """A record with all within it, and all that followed from it."""
        record, prefix = self.kept[path], _prefix(path)
        for below in [one for one in self.kept if one == path or _is_below(one, path)]:
            del self.kept[below]
        self._forget_followers(record, prefix)

    def _forget_followers(self, record: NodeRecord, prefix: str) -> None:
        scope = self._scope(prefix)
        names = {name for name, needed in scope.waits_for.items() if record.node in needed}
        names |= scope.nodes[record.node].reset  # what a gate has sent back
        for follower in self._frame(prefix):
            later = follower in self.kept and self._order[follower] > self._order[record.path]
            if later and self.kept[follower].node in names:
                self._forget(follower)

    def _open(self, prefix: str) -> None:
        """The frame and all around it are under way again, and nothing in it was skipped."""
        for one in self._frame(prefix):
            if self.kept[one].state == NodeState.SKIPPED:
                del self.kept[one]
        if not prefix:
            return
        inner = prefix[:-1]
        found = _ITERATION.match(inner)
        owner = found["loop"] if found else inner
        self._run_again(inner)
        if found:
            self._run_again(owner, int(found["number"]))
            self._forget_later(owner, int(found["number"]))
        self._forget_followers(self.kept[owner], _prefix(owner))
        self._open(_prefix(owner))

    def _run_again(self, path: str, iteration: int | None = None) -> None:
        record = self.kept[path]
        number = record.iteration if iteration is None else iteration
        self.kept[path] = replace(record, state=NodeState.RUNNING, outputs={}, error="", iteration=number)

    def _forget_later(self, loop: str, number: int) -> None:
        for one in list(self.kept):
            found = _ITERATION.match(one.removeprefix(loop).partition("/")[0]) if one.startswith(f"{loop}[") else None
            if found and int(found["number"]) > number:
                del self.kept[one]


def _prefix(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return f"{head}{slash}"


def _is_below(path: str, of: str) -> bool:
    return path.startswith((f"{of}/", f"{of}["))
