"""Running a part of a run again: from one node on, with what came before it as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sessions_app.workflows.attempts import attempt_of
from sessions_app.workflows.graph import Scope, Workflow
from sessions_app.workflows.ordering import descendants, followers
from sessions_app.workflows.records import STEP, Record, State, path_of


@dataclass(frozen=True, slots=True)
class _Place:
    """A step of a path: the scope it is in, and the paths before it."""

    scope: Scope
    prefix: str
    node: str
    iteration: int


def again_from(workflow: Workflow, records: Mapping[str, Record], path: str) -> dict[str, Record]:
    """The records that are left when a node is to run again: without it and all that follows from it.

    What it lies within is open again; the iterations after its own are gone. Raises KeyError for a path without a
    record, and for one of an earlier attempt.
    """
    left = dict(records)
    if path not in left:
        raise KeyError(path)
    places = list(_places(workflow, path))
    if path_of(places[-1].prefix, places[-1].node, _attempt(records, places[-1])) != path:
        raise KeyError(path)
    for depth, place in enumerate(places):
        after = descendants(place.node, followers(place.scope.wires))
        for name in {*after, *place.scope.nodes} - {place.node}:
            record = left.get(own := path_of(place.prefix, name, attempt_of(records, place.scope, place.prefix, name)))
            if record is not None and (name in after or record.state in {State.SKIPPED, State.CANCELLED}):
                _forget(left, own)
        own = path_of(place.prefix, place.node, _attempt(records, place))
        if depth == len(places) - 1:
            _forget(left, own)
        else:
            _open_again(left, own, place.iteration)
    return left


def _places(workflow: Workflow, path: str) -> Iterator[_Place]:
    scope, prefix = workflow.root, ""
    for step in path.split("/"):
        found = STEP.match(step)
        if found is None or found["id"] not in scope.nodes:
            raise KeyError(path)
        yield _Place(scope, prefix, found["id"], int(found["iteration"] or 0))
        body = scope.nodes[found["id"]].body
        scope, prefix = body or scope, f"{prefix}{step}/"


def _attempt(records: Mapping[str, Record], place: _Place) -> int:
    return attempt_of(records, place.scope, place.prefix, place.node)


def _forget(records: dict[str, Record], path: str) -> None:
    for name in [name for name in records if name == path or name.startswith((f"{path}/", f"{path}["))]:
        del records[name]


def _open_again(records: dict[str, Record], path: str, iteration: int) -> None:
    """A loop goes on in this iteration, a component goes on; what they had come to is gone."""
    last = records[path].iteration
    for later in range(iteration + 1, last + 1):
        _forget(records, f"{path}[{later}]")
    flawed = any(records[f"{path}[{number}]"].flawed for number in range(1, iteration))
    opened = {path: flawed} | ({f"{path}[{iteration}]": False} if iteration else {})
    for name, was in opened.items():
        records[name] = replace(
            records[name], state=State.RUNNING, outputs={}, error="", flawed=was, iteration=iteration
        )
