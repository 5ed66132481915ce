"""What is to be done next in a run: records in, records out, and nothing else.

``advance`` takes all that is kept of a run and says what is to be kept now. A record that is running and has a request
asks for work outside; when that has ended, ``completed`` makes the finished record of it, and ``advance`` goes on. So
one step is one transaction, a run can be taken up after any crash from its records alone, and what has finished is
never done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sessions_app.workflows.engine import records as frames
from sessions_app.workflows.engine.records import (
    ITERATION,
    Frame,
    NodeRecord,
    NodeState,
    current_attempt,
    current_record,
    gate_retries,
    gates_repeating,
    node_of_path,
    record_path,
)
from sessions_app.workflows.language.graph import GraphNode, WorkflowGraph
from sessions_app.workflows.language.limits import MAX_NODE_RUNS
from sessions_app.workflows.language.values import ConversionError, is_truthy
from sessions_app.workflows.nodes import (
    BeginResult,
    FinishedWork,
    GateRetry,
    NodeContext,
    NodeFailed,
    NodeFinished,
    RunInSandbox,
    WorkRequest,
    type_of,
)
from sessions_app.workflows.nodes.agent import keeps_session
from sessions_app.workflows.nodes.gate import GateSettings
from sessions_app.workflows.nodes.scopes import LoopSettings

MAX_RECORDS_PER_STEP: Final = 500
"""Records that one step writes at most; a loop that never waits goes on in the next."""


_STATE_OF_RESULT: Final = {
    NodeFinished: NodeState.SUCCEEDED,
    NodeFailed: NodeState.FAILED,
    GateRetry: NodeState.RETRIED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run has ended."""

    succeeded: bool
    error: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What is to be kept now. ``outcome`` is None while the run goes on; ``is_full``: step again at once."""

    written: tuple[NodeRecord, ...]
    outcome: RunOutcome | None
    is_full: bool = False

    @property
    def begun(self) -> tuple[NodeRecord, ...]:
        """The records that ask for work."""
        return tuple(record for record in self.written if record.is_at_work)


def advance_run(workflow: WorkflowGraph, run: Mapping[str, Any], records: Mapping[str, NodeRecord]) -> EngineStep:
    """The next step of a run. ``run``: timestamp, type, text and params, for triggers; others are inputs by name."""
    walk = _FrameWalk(workflow, records)
    end = walk.frame(Frame(scope=workflow.root, run=run, inputs=run))
    written = tuple(walk.written.values())
    if end is None and len(walk.records) > MAX_NODE_RUNS:
        end = _FrameEnd(error=f"the run has more than {MAX_NODE_RUNS} node runs")
    if end is None:
        return EngineStep(written, None, walk.is_full)
    error = end.error or ("a node has failed, and the run went on" if end.flawed else "")
    return EngineStep(written, RunOutcome(succeeded=not error, error=error, outputs=end.outputs))


def complete_record(
    workflow: WorkflowGraph, record: NodeRecord, result: Mapping[str, Any], limited: RunInSandbox
) -> NodeRecord:
    """The record of work that has ended, or asks for more. ``result`` is what the type of the node says of ``end``."""
    node = node_of_path(workflow, record.path)
    end = type_of(node).end
    assert end is not None  # noqa: S101  (only types that ask have requests)
    ending = end(node, FinishedWork(record.request, result), limited)
    if isinstance(ending, WorkRequest):
        return replace(record, request=ending.request)
    if isinstance(ending, NodeFailed):
        return replace(record, state=NodeState.FAILED, outputs=ending.outputs, error=ending.message)
    return replace(record, state=NodeState.SUCCEEDED, outputs=ending.outputs)


def cancel_records(records: Mapping[str, NodeRecord]) -> tuple[NodeRecord, ...]:
    """What is to be kept when a run is cancelled: all that is under way ends, and its work is to be ended."""
    return tuple(replace(one, state=NodeState.CANCELLED) for one in records.values() if not one.is_finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FrameEnd:
    """How a frame has ended."""

    error: str = ""
    flawed: bool = False
    outputs: Mapping[str, Any] = field(default_factory=dict)
    current: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False


class _FrameWalk:
    """One walk over the frames that are open."""

    def __init__(self, workflow: WorkflowGraph, records: Mapping[str, NodeRecord]):
        self.records = dict(records)
        self.written: dict[str, NodeRecord] = {}
        self._places = workflow.max_concurrent - sum(record.is_at_work for record in records.values())
        self._held_back = False

    @property
    def is_full(self) -> bool:
        """Whether this step has written all that one may."""
        return len(self.written) >= MAX_RECORDS_PER_STEP or len(self.records) > MAX_NODE_RUNS

    def frame(self, frame: Frame) -> _FrameEnd | None:
        """Push a frame on as far as it goes; None while it is under way."""
        while True:
            before = len(self.written), self._marks(frame)
            may_begin = not self._broken(frame)
            for name in frame.scope.order:
                if self.is_full:
                    return None
                self._push(frame, frame.scope.nodes[name], may_begin=may_begin)
            if before == (len(self.written), self._marks(frame)):
                return self._end(frame)

    def _marks(self, frame: Frame) -> tuple[NodeState | None, ...]:
        found = (self._record(frame, name) for name in frame.scope.order)
        return tuple(record.state if record else None for record in found)

    def _write(self, record: NodeRecord) -> NodeRecord:
        self.records[record.path] = self.written[record.path] = record
        return record

    def _retries(self, frame: Frame, gate: GraphNode) -> list[NodeRecord]:
        return gate_retries(self.records, frame.scope, frame.prefix, gate)

    def _attempt(self, frame: Frame, name: str) -> int:
        return current_attempt(self.records, frame.scope, frame.prefix, name)

    def _record(self, frame: Frame, name: str) -> NodeRecord | None:
        return current_record(self.records, frame.scope, frame.prefix, name)

    def _broken(self, frame: Frame) -> bool:
        """Whether something has failed that nothing may follow."""
        return any(
            record.state in {NodeState.FAILED, NodeState.CANCELLED} and not node.settings.continue_on_failure
            for name, node in frame.scope.nodes.items()
            if (record := self._record(frame, name)) is not None
        )

    def _push(self, frame: Frame, node: GraphNode, *, may_begin: bool) -> None:
        record = self._record(frame, node.id)
        if record is None and may_begin and self._is_ready(frame, node):
            record = self._begin(frame, node)
        if record is None or record.is_finished or node.body is None:
            return
        if node.type == "loop":
            self._push_loop(node, record)
        else:
            self._push_component(node, record)

    def _is_ready(self, frame: Frame, node: GraphNode) -> bool:
        for name in frame.scope.waits_for[node.id]:
            record = self._record(frame, name)
            tolerant = frame.scope.nodes[name].settings.continue_on_failure
            if record is None or not (
                record.state == NodeState.SUCCEEDED or (record.state == NodeState.FAILED and tolerant)
            ):
                return False
        around = (self._record(frame, name) for name in node.reset)
        return not any(record is not None and not record.is_finished for record in around)

    def _begin(self, frame: Frame, node: GraphNode) -> NodeRecord | None:
        if type_of(node).end is not None and self._places <= 0:
            self._held_back = True  # its turn comes when other work has ended
            return None
        path = record_path(frame.prefix, node.id, self._attempt(frame, node.id))
        record = NodeRecord(path=path, node=node.id, kind=node.type)
        try:
            inputs = frames.node_inputs(frame, node, lambda name: self._record(frame, name))
        except ConversionError as error:
            return self._write(replace(record, state=NodeState.FAILED, error=str(error)))
        begin = type_of(node).begin
        if begin is None:
            self._write(replace(record, inputs=inputs, iteration=1 if node.type == "loop" else 0))
            if node.type == "loop":
                self._open_iteration(self.records[path], {})
            return self.records[path]
        moment = self._moment(frame, node, inputs)
        return self._begun(replace(record, inputs=moment.inputs), begin(moment))

    def _begun(self, record: NodeRecord, beginning: BeginResult) -> NodeRecord:
        """Keep what a node has come to by beginning."""
        if isinstance(beginning, WorkRequest):
            self._places -= 1
            return self._write(replace(record, request=beginning.request))
        error = beginning.message if isinstance(beginning, NodeFailed) else ""
        return self._write(
            replace(record, state=_STATE_OF_RESULT[type(beginning)], outputs=beginning.outputs, error=error)
        )

    def _moment(self, frame: Frame, node: GraphNode, inputs: Mapping[str, Any]) -> NodeContext:
        """What a node begins with; one that a gate sent back is told why, and goes on in the session that it had."""
        gates = [gate for gate in gates_repeating(frame.scope, node.id) if _retry_target(gate) == node.id]
        retries = [record for gate in gates for record in self._retries(frame, gate)]
        feedback = str(retries[-1].outputs.get("retry_feedback", "")) if retries else ""
        if retries:
            inputs = {**inputs, "feedback": feedback, "retryCount": len(retries)}
        count = len(self._retries(frame, node)) if isinstance(node.settings, GateSettings) else len(retries)
        prefixes = [frame.prefix] if retries or keeps_session(node) else []
        prefixes += [frame.before] if frame.before and keeps_session(node) else []
        sessions = (self._session(frame, prefix, node) for prefix in prefixes)
        session = next((one for one in sessions if one), "")
        return NodeContext(node=node, inputs=inputs, run=frame.run, retries=count, feedback=feedback, session=session)

    def _session(self, frame: Frame, prefix: str, node: GraphNode) -> str:
        """The session of the latest attempt in a frame that had one."""
        at = replace(frame, prefix=prefix)
        for attempt in range(self._attempt(at, node.id), 0, -1):
            record = self.records.get(record_path(prefix, node.id, attempt))
            if record is not None and record.outputs.get("sessionId"):
                return str(record.outputs["sessionId"])
        return ""

    def _open_iteration(self, loop: NodeRecord, previous: Mapping[str, Any]) -> None:
        path = f"{loop.path}[{loop.iteration}]"
        given = {"iteration": loop.iteration, "previous": dict(previous)}
        self._write(NodeRecord(path=path, node=loop.node, kind=ITERATION, inputs=given, iteration=loop.iteration))

    def _push_loop(self, node: GraphNode, loop: NodeRecord) -> None:
        assert node.body is not None  # noqa: S101  (a loop has one)
        while not self.is_full:
            opened = self.records[f"{loop.path}[{loop.iteration}]"]
            before = f"{loop.path}[{loop.iteration - 1}]/" if loop.iteration > 1 else ""
            frame = Frame(
                scope=node.body,
                prefix=f"{opened.path}/",
                inputs=loop.inputs,
                previous=opened.inputs["previous"],
                iteration=loop.iteration,
                before=before,
            )
            end = self.frame(frame)
            if end is None:
                return
            told = {"outputs": dict(end.outputs), "current": dict(end.current), "continue": end.goes_on}
            state = NodeState.FAILED if end.error else NodeState.SUCCEEDED
            self._write(replace(opened, state=state, outputs=told, error=end.error, flawed=end.flawed))
            loop = replace(loop, flawed=loop.flawed or end.flawed)
            if end.error or not end.goes_on or loop.iteration >= _max_iterations(node):
                self._close_loop(node, loop, end)
                return
            loop = self._write(replace(loop, iteration=loop.iteration + 1))
            self._open_iteration(loop, end.current)

    def _close_loop(self, node: GraphNode, loop: NodeRecord, end: _FrameEnd) -> None:
        reason = "error" if end.error else "max_iterations" if end.goes_on else "condition"
        reported = {"iterations": loop.iteration, "terminationReason": reason}
        error = f"iteration {loop.iteration}: {end.error}" if end.error else ""
        self._close(node, loop, {**end.outputs, **reported}, error)

    def _push_component(self, node: GraphNode, record: NodeRecord) -> None:
        assert node.body is not None  # noqa: S101  (a component has one)
        given = {"type": "component", **record.inputs}
        end = self.frame(Frame(scope=node.body, prefix=f"{record.path}/", inputs=record.inputs, run=given))
        if end is not None:
            self._close(node, replace(record, flawed=end.flawed), end.outputs, end.error)

    def _close(self, node: GraphNode, record: NodeRecord, outputs: Mapping[str, Any], error: str) -> None:
        try:
            outputs = frames.convert_declared_outputs(node.outputs, outputs)
        except ConversionError as unfit:
            error = error or f"the output {unfit}"
        state = NodeState.FAILED if error else NodeState.SUCCEEDED
        self._write(replace(record, state=state, outputs=outputs, error=error))

    def _end(self, frame: Frame) -> _FrameEnd | None:
        """How the frame has ended, when nothing in it moves any more; None while something is at work or waits."""
        found = {name: self._record(frame, name) for name in frame.scope.order}
        left = [name for name, record in found.items() if record is None]
        if any(record is not None and not record.is_finished for record in found.values()):
            return None
        broken = self._broken(frame)
        if left and not broken and (self._held_back or self.is_full):
            return None
        for name in left:
            path = record_path(frame.prefix, name, self._attempt(frame, name))
            self._write(NodeRecord(path=path, node=name, kind=frame.scope.nodes[name].type, state=NodeState.SKIPPED))
        failed = [record for record in found.values() if record is not None and record.state == NodeState.FAILED]
        error = _first_error(frame, failed) if broken else ""
        if left and not broken:
            error = f"stuck: {', '.join(left)} could never begin"
        return self._ended(
            frame, error, flawed=bool(failed) or any(one is not None and one.flawed for one in found.values())
        )

    def _ended(self, frame: Frame, error: str, *, flawed: bool) -> _FrameEnd:
        def present(name: str) -> NodeRecord | None:
            return self._record(frame, name)

        said = frames.frame_results(frame, "continue", present)
        return _FrameEnd(
            error=error,
            flawed=flawed,
            outputs=frames.frame_results(frame, "output", present) or _scope_outputs(frame, present),
            current=frames.frame_results(frame, "current", present),
            goes_on=any(is_truthy(value) is not frame.scope.negated for value in said.values()),
        )


def _scope_outputs(frame: Frame, record_of: frames.FindRecord) -> Mapping[str, Any]:
    return {} if frame.scope.kind == "loop" else frames.leaf_outputs(frame, record_of)


def _retry_target(gate: GraphNode) -> str:
    return gate.settings.retry_target if isinstance(gate.settings, GateSettings) else ""


def _max_iterations(node: GraphNode) -> int:
    return node.settings.max_iterations if isinstance(node.settings, LoopSettings) else 1


def _first_error(frame: Frame, failed: list[NodeRecord]) -> str:
    intolerable = (one for one in failed if not frame.scope.nodes[one.node].settings.continue_on_failure)
    first = next(intolerable, None)
    return f"“{frame.scope.nodes[first.node].label}” failed: {first.error}" if first else "it was cancelled"
