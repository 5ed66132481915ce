"""Executions as processes of one machine: launch, observe and end them.

Executions that do not answer a status poll are checked against the machine's processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.machine import launch
from executors_app.machine.bulk_status import StatusTarget, poll_statuses
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.process import execution_processes, identity
from executors_app.machine.process.execution_processes import ExecutionProcesses
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.machine.storage import ExecutionStorage, StateDirectory
from executors_app.wire import launch_tokens
from executors_app.wire.errors import AgentctlForeign, ExecutorError, LaunchFailed
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation, Observed
from executors_app.wire.exhaustion import raise_if_exhausted

logger = logging.getLogger(__name__)

GROUPING_WINDOW: Final = 0.05
"""Seconds for which failed polls are gathered, because each group costs one scan of the machine's processes."""

FollowUpCheck = Callable[[str, ExecutionProcesses, ExecutorError], Awaitable[Observation]]

STOP_GRACE: Final = 10.0
"""Seconds between TERM and KILL."""


class FollowUpChecks:
    """Checks every execution that is added; after its task group, ``observations`` contains all results.

    Processes are always scanned after the poll has failed: a scan from before would miss an agentctl that was
    starting.
    """

    def __init__(self, group: asyncio.TaskGroup, check: FollowUpCheck, concurrency: int):
        self.observations: dict[str, Observation] = {}
        """Observations by execution id."""
        self._group, self._check, self._bound = group, check, asyncio.Semaphore(concurrency)
        self._waiting: list[tuple[str, ExecutorError]] = []
        self._task: asyncio.Task[Any] | None = None
        self._adding_finished = asyncio.Event()

    def add(self, execution_id: str, error: ExecutorError) -> None:
        """Add an execution whose poll failed."""
        self._waiting.append((execution_id, error))
        if self._task is None or self._task.done():
            self._task = self._group.create_task(self._check_groups())

    def finish_adding(self) -> None:
        """Report that all polls are done, so that the last group need not wait for more."""
        self._adding_finished.set()

    async def _check_groups(self) -> None:
        while self._waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._adding_finished.wait(), GROUPING_WINDOW)
            group, self._waiting = self._waiting, []
            found = await asyncio.to_thread(execution_processes.find_all_processes)
            await asyncio.gather(
                *(
                    self._check_one(execution_id, found.get(execution_id) or ExecutionProcesses(), error)
                    for execution_id, error in group
                )
            )

    async def _check_one(self, execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> None:
        async with self._bound:
            self.observations[execution_id] = await self._check(execution_id, processes, error)


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """This machine, with one data directory. It has no state in memory."""

    storage: ExecutionStorage
    extra: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of each new agentctl."""
    derives_tokens: bool = True
    """Whether a launch's token is derived from the spec's secret; a host daemon gets the token itself."""

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Start agentctl, which creates the worktree, or find both; ``Launched.state`` names its process."""
        directory = self.storage.state_directory_of(spec.execution_id)
        if self.derives_tokens:
            token = launch_tokens.mint_launch_token(spec.auth_token)
        else:
            token = spec.auth_token
        try:
            worktree = await asyncio.to_thread(self.storage.write_seed, spec)
            agentctl = await launch.find_or_start(directory, spec, worktree.path, token, self.extra)
        except OSError as error:
            raise LaunchFailed(f"agentctl could not be started: {error}") from error
        if self.derives_tokens and not launch_tokens.is_token_of(agentctl.token, spec.auth_token):
            raise LaunchFailed("This session's agentctl rejected the control plane: it has another execution's token.")
        return Launched(
            url=agentctl.url,
            pid=agentctl.process.pid,
            boot_id=agentctl.boot_id,
            workspace_path=str(worktree.path),
            worktree_id=spec.worktree_owner,
            worktree_path=str(worktree.path),
            worktree_branch=worktree.branch,
            found=agentctl.found,
            state=self._state(agentctl.process, agentctl.token),
        )

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether an execution is of this machine, kernel boot and pid namespace, or ended with an earlier boot."""
        return self._is_here(execution, identity.host_id())

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Poll all executions concurrently; those that do not answer are checked against the machine's processes."""
        here = identity.host_id()
        local = {execution.id: execution for execution in executions if self._is_here(execution, here)}
        targets = [_status_target(execution) for execution in local.values()]

        async def check(execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> Observation:
            return await self._check_closely(local[execution_id], processes, error, timeout)

        async with asyncio.TaskGroup() as group:
            follow_ups = FollowUpChecks(group, check, concurrency)
            answers = await poll_statuses(targets, timeout, concurrency, on_error=follow_ups.add)
            follow_ups.finish_adding()
        now = datetime.now(UTC)
        observations = {execution.id: Observation.unknown("other_host") for execution in executions}
        for execution_id, answer in answers.items():
            if not isinstance(answer, ExecutorError):
                observations[execution_id] = _alive(local[execution_id], answer, now)
        return observations | follow_ups.observations

    async def end(self, execution: ExecutionFacts) -> bool:
        """End agentctl (TERM, then KILL) and what it has left; only processes that are proven to be its own."""
        if not self.can_manage(execution):
            return False
        return await asyncio.to_thread(_end_process, self.storage.state_directory_of(execution.id), execution)

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Kill what outlived agentctl; nothing while an agentctl of this execution lives."""
        if not self.can_manage(execution) or _is_process_alive(execution):
            return 0
        return await asyncio.to_thread(execution_processes.kill_leftovers, execution.id)

    def _is_here(self, execution: ExecutionFacts, here: str) -> bool:
        if execution.host_id in {"", here}:
            return True
        return launch.has_ended_with_its_host(self.storage.state_directory_of(execution.id), execution)

    async def _check_closely(
        self, execution: ExecutionFacts, processes: ExecutionProcesses, answer: Any, timeout: float
    ) -> Observation:
        """Decide about an execution that did not answer at its recorded address: moved, silent, or dead."""
        listener = launch.find_listener(self.storage.state_directory_of(execution.id), execution.id)
        try:
            token = self.storage.token_of(execution)
        except OSError as error:
            raise_if_exhausted(error)
            # Its own state directory is damaged: that must not hide the others, whose checks end with this one's error.
            logger.warning("execution %s: its token cannot be read: %s", execution.id, error)
            return Observation.unknown(_unknown_reason(answer))
        if listener is not None and listener.process is not None and token is not None:
            target = StatusTarget(execution.id, listener.url, token, listener=listener)
            if target != _status_target(execution):
                second = (await poll_statuses([target], timeout, 1))[execution.id]
                if not isinstance(second, ExecutorError):
                    return self._alive_elsewhere(target, listener.process, second)
                if processes.agentctl:
                    answer = second
        if processes.agentctl or not _is_proven_dead(execution, answer):
            return Observation.unknown(_unknown_reason(answer))
        state, reason = await asyncio.to_thread(self.storage.workspace_state, execution)
        return Observation(
            Observed.DEAD,
            "process_gone",
            workspace=state,
            workspace_reason=reason,
            leftovers=len(processes.others),
            seen_at=datetime.now(UTC),
        )

    def _alive_elsewhere(
        self, target: StatusTarget, process: ProcessIdentity, report: Mapping[str, Any]
    ) -> Observation:
        """Observe an unfinished launch, whose address or token was not recorded yet."""
        alive = Observation(Observed.ALIVE, report=report, url=target.url, pid=process.pid, seen_at=datetime.now(UTC))
        return replace(alive, state=self._state(process, target.token))

    def _state(self, process: ProcessIdentity, token: str) -> dict[str, Any]:
        """Return what the row needs to recognise agentctl later."""
        state: dict[str, Any] = {"process": process.to_json()}
        if self.derives_tokens:
            state |= launch_tokens.token_state(token)
        return state


def _is_process_alive(execution: ExecutionFacts) -> bool:
    process = execution_processes.recorded_process(execution.state)
    return (
        process is not None
        and identity.is_alive(process)
        and execution_processes.has_agentctl_command_line(process.pid, execution.id)
    )


def _is_proven_dead(execution: ExecutionFacts, answer: Any) -> bool:
    """Whether the recorded process is gone; without a record, whether nothing listens (a timeout is no proof)."""
    if execution_processes.recorded_process(execution.state) is not None:
        return not _is_process_alive(execution)
    return isinstance(answer, ExecutorError) and answer.details.get("reason") in {"refused", "bad_url"}


def _alive(execution: ExecutionFacts, report: Mapping[str, Any], now: datetime) -> Observation:
    return Observation(Observed.ALIVE, report=report, url=execution.agentctl_url, pid=execution.pid, seen_at=now)


def _unknown_reason(answer: Any) -> str:
    """Return the reason of a failed poll, for an agentctl whose process is running."""
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    if isinstance(answer, ExecutorError):
        return str(answer.details.get("reason", answer.code))
    return "no_answer"


def _status_target(execution: ExecutionFacts) -> StatusTarget:
    """Return the recorded address and process of an execution."""
    listener = AgentctlListener(execution.agentctl_url, execution_processes.recorded_process(execution.state))
    return StatusTarget(
        execution.id,
        execution.agentctl_url,
        launch_tokens.bearer_token(execution.auth_token, execution.state),
        listener=listener,
    )


def _end_process(directory: StateDirectory, execution: ExecutionFacts) -> bool:
    with ExitStack() as held:
        try:
            # An agentctl that is being forked cannot be recognised yet, and holds this lock until it can.
            held.enter_context(directory.start_lock())
        except OSError as error:
            raise_if_exhausted(error)  # else there is no such directory, or it is damaged: nothing can start in it
        except LaunchFailed as error:
            logger.warning("execution %s: %s", execution.id, error.message)
            return False
        processes = execution_processes.find_processes(execution.id)
        for process in processes.agentctl:
            execution_processes.terminate_process(process, STOP_GRACE)
        execution_processes.kill_leftovers(execution.id)
        remaining = execution_processes.find_processes(execution.id)
        return not remaining.agentctl and not remaining.others
