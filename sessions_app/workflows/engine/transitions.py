"""Decide what a run does next, as a pure function of its records.

``advance_run`` takes all records of a run and returns those to write. A running record with a request asks for work
outside the engine; when that has ended, ``complete_record`` returns its finished record, and ``advance_run`` continues.
One step is therefore one transaction, a run can continue after any crash from its records alone, and nothing that has
finished is done again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from sessions_app.workflows.engine.records import (
    ITERATION,
    Frame,
    NodeRecord,
    NodeState,
    convert_declared_outputs,
    frame_results,
    gates_repeating,
    leaf_outputs,
    node_inputs,
    node_of_path,
    record_path,
    size_of_value,
    too_large,
    with_bounded_outputs,
)
from sessions_app.workflows.language.graph import GraphNode, WorkflowGraph
from sessions_app.workflows.language.limits import MAX_NODE_RUNS, MAX_RUN_VALUES
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
from sessions_app.workflows.nodes.control_flow import GateSettings, LoopSettings

MAX_RECORDS_PER_STEP: Final = 500
"""Records that one step writes at most. A loop that never waits for work continues in the next step."""


_STATE_OF_RESULT: Final = {
    NodeFinished: NodeState.SUCCEEDED,
    NodeFailed: NodeState.FAILED,
    GateRetry: NodeState.RETRIED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of a run."""

    succeeded: bool
    error: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStep:
    """The records to write. ``outcome`` is None while the run continues; ``is_full`` asks for another step at once."""

    written: tuple[NodeRecord, ...]
    outcome: RunOutcome | None
    is_full: bool = False

    @property
    def begun(self) -> tuple[NodeRecord, ...]:
        """The records that ask for work outside the engine."""
        return tuple(record for record in self.written if record.is_at_work)


def advance_run(workflow: WorkflowGraph, run: Mapping[str, Any], records: Mapping[str, NodeRecord]) -> EngineStep:
    """Return the next step of a run.

    ``run`` holds the values of triggers (timestamp, type, text, params), and the declared inputs by name.
    """
    walk = _FrameWalk(workflow, records)
    end = walk.frame(Frame(scope=workflow.root, run=run, inputs=run))
    written = tuple(walk.written.values())
    if end is None and len(walk.records) > MAX_NODE_RUNS:
        end = _FrameEnd(error=f"the run has more than {MAX_NODE_RUNS} step runs; reduce the iterations or retries")
    if end is None and walk.size > MAX_RUN_VALUES:
        message = (
            f"the inputs and outputs of all step runs are together larger than {MAX_RUN_VALUES >> 20} MiB; "
            "reduce the iterations, or write large results to files of the workspace"
        )
        end = _FrameEnd(error=message)
    if end is None:
        return EngineStep(written, None, walk.is_full)
    error = end.error
    if not error and end.flawed:
        error = "a step has failed, and the run continued without it"
    return EngineStep(written, RunOutcome(succeeded=not error, error=error, outputs=end.outputs))


def complete_record(
    workflow: WorkflowGraph, record: NodeRecord, result: Mapping[str, Any], run_in_sandbox: RunInSandbox
) -> NodeRecord:
    """Return the record of work that has ended, or one that asks for more work.

    The node type defines the form of ``result`` (see its ``end``).
    """
    node = node_of_path(workflow, record.path)
    end = type_of(node).end
    assert end is not None  # noqa: S101  (only types with ``end`` make requests)
    outcome_of_work = end(node, FinishedWork(record.request, result), run_in_sandbox)
    if isinstance(outcome_of_work, WorkRequest):
        return replace(record, request=outcome_of_work.request)
    if isinstance(outcome_of_work, NodeFailed):
        failed = replace(record, state=NodeState.FAILED, outputs=outcome_of_work.outputs, error=outcome_of_work.message)
        return with_bounded_outputs(failed)
    return with_bounded_outputs(replace(record, state=NodeState.SUCCEEDED, outputs=outcome_of_work.outputs))


def cancel_records(records: Mapping[str, NodeRecord]) -> tuple[NodeRecord, ...]:
    """Return the records to write when a run is cancelled: those of everything that is still running."""
    return tuple(replace(record, state=NodeState.CANCELLED) for record in records.values() if not record.is_finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FrameEnd:
    """The result of a frame. ``goes_on``: the loop continues after this iteration."""

    error: str = ""
    flawed: bool = False
    outputs: Mapping[str, Any] = field(default_factory=dict)
    current: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False


class _FrameWalk:
    """One walk over the running frames, which collects the records to write."""

    def __init__(self, workflow: WorkflowGraph, records: Mapping[str, NodeRecord]):
        self.records = dict(records)
        self.written: dict[str, NodeRecord] = {}
        self.size = sum(map(_size_of, records.values()))
        """Characters of the inputs and outputs of all records, which one supervisor holds in memory."""
        self._free_slots = workflow.max_concurrent - sum(record.is_at_work for record in records.values())
        self._has_waiting = False

    @property
    def is_full(self) -> bool:
        """Whether this step has written as much as one step may."""
        is_too_large = len(self.records) > MAX_NODE_RUNS or self.size > MAX_RUN_VALUES
        return len(self.written) >= MAX_RECORDS_PER_STEP or is_too_large

    def frame(self, frame: Frame) -> _FrameEnd | None:
        """Advance a frame as far as possible; return None while it is running."""
        while True:
            before = len(self.written), self._marks(frame)
            may_begin = not self._has_failed(frame)
            for name in frame.scope.order:
                if self.is_full:
                    return None
                self._advance(frame, frame.scope.nodes[name], may_begin=may_begin)
            if before == (len(self.written), self._marks(frame)):
                return self._end(frame)

    def _marks(self, frame: Frame) -> tuple[NodeState | None, ...]:
        marks: list[NodeState | None] = []
        for name in frame.scope.order:
            record = self._record(frame, name)
            marks.append(record.state if record else None)
        return tuple(marks)

    def _write(self, record: NodeRecord) -> NodeRecord:
        record = with_bounded_outputs(record)
        before = self.records.get(record.path)
        self.size += _size_of(record)
        if before:
            self.size -= _size_of(before)
        self.records[record.path] = self.written[record.path] = record
        return record

    def _retries(self, frame: Frame, gate: GraphNode) -> list[NodeRecord]:
        """Return the records of every time that a gate was not passed in a frame, latest last."""
        most = 1 + sum(frame.scope.nodes[name].settings_of(GateSettings).max_retries for name in frame.scope.gates)
        paths = (record_path(frame.prefix, gate.id, attempt) for attempt in range(1, most + 1))
        found = (self.records.get(path) for path in paths)
        return [record for record in found if record is not None and record.state == NodeState.RETRIED]

    def _attempt(self, frame: Frame, name: str) -> int:
        """Return the number of the current attempt of a node in a frame, from 1."""
        return 1 + sum(len(self._retries(frame, gate)) for gate in gates_repeating(frame.scope, name))

    def _record(self, frame: Frame, name: str) -> NodeRecord | None:
        """Return the record of the current attempt; None if it has not begun."""
        return self.records.get(record_path(frame.prefix, name, self._attempt(frame, name)))

    def _has_failed(self, frame: Frame) -> bool:
        """Return whether a node has failed whose failure stops the frame."""
        for name, node in frame.scope.nodes.items():
            record = self._record(frame, name)
            has_failed = record is not None and record.state in {NodeState.FAILED, NodeState.CANCELLED}
            if has_failed and not node.settings.continue_on_failure:
                return True
        return False

    def _advance(self, frame: Frame, node: GraphNode, *, may_begin: bool) -> None:
        record = self._record(frame, node.id)
        if record is None and may_begin and self._is_ready(frame, node):
            record = self._begin(frame, node)
        if record is None or record.is_finished or node.body is None:
            return
        if node.type == "loop":
            self._advance_loop(node, record)
        else:
            self._advance_component(node, record)

    def _is_ready(self, frame: Frame, node: GraphNode) -> bool:
        for name in frame.scope.waits_for[node.id]:
            record = self._record(frame, name)
            if record is None or record.state not in (NodeState.SUCCEEDED, NodeState.FAILED):
                return False
            if record.state == NodeState.FAILED and not frame.scope.nodes[name].settings.continue_on_failure:
                return False
        # A gate must not send back nodes that still run: their results would arrive in the next attempt.
        resettable = (self._record(frame, name) for name in node.reset)
        return not any(record is not None and not record.is_finished for record in resettable)

    def _begin(self, frame: Frame, node: GraphNode) -> NodeRecord | None:
        if type_of(node).end is not None and self._free_slots <= 0:
            self._has_waiting = True  # it begins when other work has ended
            return None
        path = record_path(frame.prefix, node.id, self._attempt(frame, node.id))
        record = NodeRecord(path=path, node=node.id, kind=node.type)
        try:
            inputs = node_inputs(frame, node, partial(self._record, frame))
        except ConversionError as error:
            return self._write(replace(record, state=NodeState.FAILED, error=str(error)))
        begin = type_of(node).begin
        if begin is None:
            if node.type != "loop":
                return self._write(replace(record, inputs=inputs))
            loop = self._write(replace(record, inputs=inputs, iteration=1))
            self._open_iteration(loop, {})
            return loop
        context = self._context(frame, node, inputs)
        return self._write_begun(replace(record, inputs=context.inputs), begin(context))

    def _write_begun(self, record: NodeRecord, result: BeginResult) -> NodeRecord:
        """Write the record of a node that has begun."""
        if isinstance(result, WorkRequest):
            self._free_slots -= 1
            return self._write(replace(record, request=result.request))
        error = ""
        if isinstance(result, NodeFailed):
            error = result.message
        return self._write(replace(record, state=_STATE_OF_RESULT[type(result)], outputs=result.outputs, error=error))

    def _context(self, frame: Frame, node: GraphNode, inputs: Mapping[str, Any]) -> NodeContext:
        """Return the context in which a node begins. After a retry it has the feedback, and the session to continue."""
        retries: list[NodeRecord] = []
        for gate in gates_repeating(frame.scope, node.id):
            if gate.settings_of(GateSettings).retry_target == node.id:
                retries += self._retries(frame, gate)
        feedback = ""
        if retries:
            feedback = str(retries[-1].outputs.get("retry_feedback", ""))
            inputs = dict(inputs) | {"feedback": feedback, "retryCount": len(retries)}
        count = len(retries)
        if isinstance(node.settings, GateSettings):
            count = len(self._retries(frame, node))
        session = self._session_to_continue(frame, node, is_retry=bool(retries))
        return NodeContext(node=node, inputs=inputs, run=frame.run, retries=count, feedback=feedback, session=session)

    def _session_to_continue(self, frame: Frame, node: GraphNode, *, is_retry: bool) -> str:
        """Return the session of an earlier attempt, or of the previous iteration; “” if the node begins a new one."""
        session = ""
        if is_retry or keeps_session(node):
            session = self._session(frame, frame.prefix, node)
        if not session and frame.before and keeps_session(node):
            session = self._session(frame, frame.before, node)
        return session

    def _session(self, frame: Frame, prefix: str, node: GraphNode) -> str:
        """Return the session of the latest attempt that had one; “” if none had."""
        at = replace(frame, prefix=prefix)
        for attempt in range(self._attempt(at, node.id), 0, -1):
            record = self.records.get(record_path(prefix, node.id, attempt))
            if record is not None and record.outputs.get("sessionId"):
                return str(record.outputs["sessionId"])
        return ""

    def _open_iteration(self, loop: NodeRecord, previous: Mapping[str, Any]) -> None:
        path = f"{loop.path}[{loop.iteration}]"
        inputs = {"iteration": loop.iteration, "previous": dict(previous)}
        self._write(NodeRecord(path=path, node=loop.node, kind=ITERATION, inputs=inputs, iteration=loop.iteration))

    def _advance_loop(self, node: GraphNode, loop: NodeRecord) -> None:
        assert node.body is not None  # noqa: S101  (every loop has one)
        most = node.settings_of(LoopSettings).max_iterations
        while not self.is_full:
            opened = self.records[f"{loop.path}[{loop.iteration}]"]
            before = ""
            if loop.iteration > 1:
                before = f"{loop.path}[{loop.iteration - 1}]/"
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
            if problem := too_large("outputs", [end.outputs, end.current]):
                end = replace(end, error=end.error or problem, outputs={}, current={})
            values = {"outputs": dict(end.outputs), "current": dict(end.current), "continue": end.goes_on}
            state = NodeState.FAILED if end.error else NodeState.SUCCEEDED
            self._write(replace(opened, state=state, outputs=values, error=end.error, flawed=end.flawed))
            loop = replace(loop, flawed=loop.flawed or end.flawed)
            if end.error or not end.goes_on or loop.iteration >= most:
                self._close_loop(node, loop, end)
                return
            loop = self._write(replace(loop, iteration=loop.iteration + 1))
            self._open_iteration(loop, end.current)

    def _close_loop(self, node: GraphNode, loop: NodeRecord, end: _FrameEnd) -> None:
        if end.error:
            reason = "error"
        elif end.goes_on:
            reason = "max_iterations"
        else:
            reason = "condition"
        outputs = dict(end.outputs) | {"iterations": loop.iteration, "terminationReason": reason}
        error = ""
        if end.error:
            error = f"iteration {loop.iteration}: {end.error}"
        self._close(node, loop, outputs, error)

    def _advance_component(self, node: GraphNode, record: NodeRecord) -> None:
        assert node.body is not None  # noqa: S101  (every component has one)
        run = {"type": "component"} | dict(record.inputs)
        end = self.frame(Frame(scope=node.body, prefix=f"{record.path}/", inputs=record.inputs, run=run))
        if end is not None:
            self._close(node, replace(record, flawed=end.flawed), end.outputs, end.error)

    def _close(self, node: GraphNode, record: NodeRecord, outputs: Mapping[str, Any], error: str) -> None:
        try:
            outputs = convert_declared_outputs(node.outputs, outputs)
        except ConversionError as unfit:
            error = error or f"the output {unfit}"
        state = NodeState.FAILED if error else NodeState.SUCCEEDED
        self._write(replace(record, state=state, outputs=outputs, error=error))

    def _end(self, frame: Frame) -> _FrameEnd | None:
        """Return the result of a frame in which nothing can advance; None while something in it works or waits."""
        begun: list[NodeRecord] = []
        not_begun: list[str] = []
        for name in frame.scope.order:
            record = self._record(frame, name)
            if record is None:
                not_begun.append(name)
            else:
                begun.append(record)
        if not all(record.is_finished for record in begun):
            return None
        has_failed = self._has_failed(frame)
        if not_begun and not has_failed and (self._has_waiting or self.is_full):
            return None
        for name in not_begun:
            path = record_path(frame.prefix, name, self._attempt(frame, name))
            self._write(NodeRecord(path=path, node=name, kind=frame.scope.nodes[name].type, state=NodeState.SKIPPED))
        failed = [record for record in begun if record.state == NodeState.FAILED]
        error = ""
        if has_failed:
            error = _first_error(frame, failed)
        elif not_begun:
            error = f"the run is stuck: {', '.join(not_begun)} can never begin"
        flawed = bool(failed) or any(record.flawed for record in begun)
        return self._result(frame, error, flawed=flawed)

    def _result(self, frame: Frame, error: str, *, flawed: bool) -> _FrameEnd:
        present = partial(self._record, frame)
        outputs = frame_results(frame, "output", present)
        if not outputs and frame.scope.kind != "loop":
            outputs = leaf_outputs(frame, present)
        continue_values = frame_results(frame, "continue", present)
        return _FrameEnd(
            error=error,
            flawed=flawed,
            outputs=outputs,
            current=frame_results(frame, "current", present),
            goes_on=any(is_truthy(value) is not frame.scope.negated for value in continue_values.values()),
        )


def _size_of(record: NodeRecord) -> int:
    return size_of_value([record.inputs, record.outputs], MAX_RUN_VALUES)


def _first_error(frame: Frame, failed: list[NodeRecord]) -> str:
    stopping = (record for record in failed if not frame.scope.nodes[record.node].settings.continue_on_failure)
    first = next(stopping, None)
    if first:
        return f"“{frame.scope.nodes[first.node].label}” failed: {first.error}"
    return "it was cancelled"
