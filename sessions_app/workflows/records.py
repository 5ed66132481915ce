"""What is kept of a run: one record for each time a node ran, and for each iteration of a loop.

A path names it: ``loop[3]/coder`` is the node *coder* in the third iteration of *loop*, ``part/check`` a node in a
component, ``coder#2`` what was done again because a gate said so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sessions_app.workflows.graph import Node, Workflow

ITERATION: Final = "iteration"
STEP: Final = re.compile(r"(?P<id>[^#\[\]/]+)(#\d+)?(\[(?P<iteration>\d+)\])?\Z")
"""One step of a path."""


class State(StrEnum):
    """How far a node has come."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    """A gate that was not passed; what leads to it has begun anew."""
    SKIPPED = "skipped"
    """It did not begin, because something before it failed."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One time that a node ran. ``request`` is the work outside that it asks for; ``{}`` where there is none.

    ``iteration``: of a loop the one it is in, of an iteration its number. ``flawed``: something in it has failed,
    and it went on all the same.
    """

    path: str
    node: str
    kind: str
    state: State = State.RUNNING
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    iteration: int = 0
    flawed: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state != State.RUNNING

    @property
    def is_at_work(self) -> bool:
        """Whether something outside of the engine works for it."""
        return self.state == State.RUNNING and bool(self.request)


def path_of(prefix: str, node: str, attempt: int) -> str:
    """The path of a node in a frame; ``attempt`` counts from 1."""
    return f"{prefix}{node}" if attempt == 1 else f"{prefix}{node}#{attempt}"


def node_at(workflow: Workflow, path: str) -> Node:
    """The node of a record. Raises KeyError for a path that is none of this workflow."""
    scope, node = workflow.root, None
    for step in path.split("/"):
        found = STEP.match(step)
        if found is None or (node is not None and node.body is None):
            raise KeyError(path)
        scope = node.body if node is not None and node.body is not None else scope
        node = scope.nodes[found["id"]]
    assert node is not None  # noqa: S101  (a path has a step at least)
    return node
