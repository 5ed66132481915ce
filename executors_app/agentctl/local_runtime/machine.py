"""Executions as processes of one machine: launch, observe and end them.

Look closer at those that give no good answer to a status poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.agentctl.http.bulk_status import StatusTarget, poll_statuses
from executors_app.agentctl.http.sockets import AgentctlListener
from executors_app.agentctl.local_runtime import launch, storage
from executors_app.agentctl.local_runtime.storage import ExecutionStorage
from executors_app.agentctl.process import execution_processes, identity
from executors_app.agentctl.process.execution_processes import ExecutionProcesses
from executors_app.agentctl.process.identity import ProcessIdentity
from executors_app.domain import ExecutionFacts, Launched, LaunchSpec, Observation, Observed
from executors_app.errors import AgentctlForeign, ExecutorError, LaunchFailed

GROUPING_WINDOW: Final = 0.05
"""Seconds for which those that fail one after the other are gathered: each group is one pass over the machine."""

FollowUpCheck = Callable[[str, ExecutionProcesses, ExecutorError], Awaitable[Observation]]


class FollowUpChecks:
    """Looks at each that is added, as long as its task group lasts; ``seen`` has them all behind it.

    The processes of each are looked for after its answer has failed, never before.
    """

    def __init__(self, group: asyncio.TaskGroup, look: FollowUpCheck, concurrency: int):
        self.seen: dict[str, Observation] = {}
        """By execution id."""
        self._group, self._look, self._bound = group, look, asyncio.Semaphore(concurrency)
        self._waiting: list[tuple[str, ExecutorError]] = []
        self._task: asyncio.Task[Any] | None = None
        self._all_in = asyncio.Event()

    def add(self, execution_id: str, error: ExecutorError) -> None:
        """It gave no good answer."""
        self._waiting.append((execution_id, error))
        if self._task is None or self._task.done():
            self._task = self._group.create_task(self._look_at_groups())

    def no_more(self) -> None:
        """Everybody has answered or failed: nothing is gathered any longer."""
        self._all_in.set()

    async def _look_at_groups(self) -> None:
        while self._waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_in.wait(), GROUPING_WINDOW)
            group, self._waiting = self._waiting, []
            found = await asyncio.to_thread(execution_processes.find_all_processes)
            await asyncio.gather(
                *(self._look_at(one, found.get(one) or ExecutionProcesses(), error) for one, error in group)
            )

    async def _look_at(self, execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> None:
        async with self._bound:
            self.seen[execution_id] = await self._look(execution_id, processes, error)


STOP_GRACE: Final = 10.0
"""Seconds between TERM and KILL."""


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """This machine, with one data directory; keeps nothing in memory."""

    disk: ExecutionStorage
    extra: Mapping[str, str] = field(default_factory=dict)
    """Joins the environment of each new agentctl."""
    mints: bool = True
    """A launch's token follows from the spec's secret; else the spec has the token itself, as a host is given it."""

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Start agentctl, which makes the worktree, or find both; the state names agentctl's process."""
        places = self.disk.places_of(spec.execution_id)
        token = storage.mint_launch_token(spec.auth_token) if self.mints else spec.auth_token
        try:
            worktree = await asyncio.to_thread(self.disk.write_seed, spec)
            agentctl = await launch.find_or_start(places, spec, worktree.path, token, self.extra)
        except OSError as error:
            raise LaunchFailed(f"agentctl could not be started: {error}") from error
        if self.mints and not storage.is_token_of(agentctl.token, spec.auth_token):
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
        """This machine, kernel boot and pid namespace (rule 2), or a row of before the machine's last boot."""
        return self._is_here(execution, identity.host_id())

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Ask all at once; only about those that gave no good answer the machine is asked too."""
        here = identity.host_id()
        ours = {one.id: one for one in executions if self._is_here(one, here)}
        targets = [_status_target(one) for one in ours.values()]

        async def look(execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> Observation:
            return await self._look_closer(ours[execution_id], processes, error, timeout)

        async with asyncio.TaskGroup() as group:
            closer = FollowUpChecks(group, look, concurrency)
            answers = await poll_statuses(targets, timeout, concurrency, on_error=closer.add)
            closer.no_more()
        now = datetime.now(UTC)
        return {
            **{one.id: Observation.unknown("other_host") for one in executions if one.id not in ours},
            **{
                key: _alive(ours[key], told, now)
                for key, told in answers.items()
                if not isinstance(told, ExecutorError)
            },
            **closer.seen,
        }

    async def end(self, execution: ExecutionFacts) -> bool:
        """TERM, then KILL agentctl, then whatever it has left; only processes proven to be its own."""
        if not self.can_manage(execution):
            return False
        return await asyncio.to_thread(_end_process, execution)

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """KILL what outlived agentctl; nothing while an agentctl of this execution lives."""
        if not self.can_manage(execution) or _process_lives(execution):
            return 0
        return await asyncio.to_thread(execution_processes.kill_leftovers, execution.id)

    def _is_here(self, execution: ExecutionFacts, here: str) -> bool:
        if execution.host_id in {"", here}:
            return True
        return launch.has_ended_with_its_host(self.disk.places_of(execution.id), execution)

    async def _look_closer(
        self, one: ExecutionFacts, processes: ExecutionProcesses, answer: Any, timeout: float
    ) -> Observation:
        """One that gave no good answer at the row's address: elsewhere, silent, or dead?"""
        listener = launch.find_listener(self.disk.places_of(one.id), one.id)
        token = self.disk.token_of(one)
        if listener is not None and listener.process is not None and token is not None:
            target = StatusTarget(one.id, listener.url, token, listener=listener)
            if target != _status_target(one):
                second = (await poll_statuses([target], timeout, 1))[one.id]
                if not isinstance(second, ExecutorError):
                    return self._alive_elsewhere(target, listener.process, second)
                answer = second if processes.agentctl else answer
        if processes.agentctl or not _is_proven_dead(one, answer):
            return Observation.unknown(_unknown_reason(answer))
        state, reason = await asyncio.to_thread(self.disk.workspace_state, one)
        return Observation(
            Observed.DEAD,
            "process_gone",
            workspace=state,
            workspace_reason=reason,
            leftovers=len(processes.others),
            seen_at=datetime.now(UTC),
        )

    def _alive_elsewhere(self, target: StatusTarget, who: ProcessIdentity, report: Mapping[str, Any]) -> Observation:
        """A half-done launch: the row does not yet know where it is, or with which token."""
        alive = Observation(Observed.ALIVE, report=report, url=target.url, pid=who.pid, seen_at=datetime.now(UTC))
        return replace(alive, state=self._state(who, target.token))

    def _state(self, who: ProcessIdentity, token: str) -> dict[str, Any]:
        """What the row keeps to know agentctl again."""
        return {"process": who.to_json(), **(storage.token_state(token) if self.mints else {})}


def _process_lives(execution: ExecutionFacts) -> bool:
    who = execution_processes.recorded_process(execution.state)
    return (
        who is not None
        and identity.is_alive(who)
        and execution_processes.has_agentctl_command_line(who.pid, execution.id)
    )


def _is_proven_dead(execution: ExecutionFacts, answer: Any) -> bool:
    """The recorded process is gone; without a record: nothing listens there (a timeout proves nothing)."""
    if execution_processes.recorded_process(execution.state) is not None:
        return not _process_lives(execution)
    return isinstance(answer, ExecutorError) and answer.details.get("reason") in {"refused", "bad_url"}


def _alive(one: ExecutionFacts, report: Mapping[str, Any], now: datetime) -> Observation:
    return Observation(Observed.ALIVE, report=report, url=one.agentctl_url, pid=one.pid, seen_at=now)


def _unknown_reason(answer: Any) -> str:
    """The reason of a bad answer, for an agentctl whose process lives."""
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    return str(answer.details.get("reason", answer.code)) if isinstance(answer, ExecutorError) else "no_answer"


def _status_target(one: ExecutionFacts) -> StatusTarget:
    """Where the row says that it listens, and as whom."""
    listener = AgentctlListener(one.agentctl_url, execution_processes.recorded_process(one.state))
    return StatusTarget(one.id, one.agentctl_url, storage.bearer_token(one.auth_token, one.state), listener=listener)


def _end_process(execution: ExecutionFacts) -> bool:
    processes = execution_processes.find_processes(execution.id)
    for who in processes.agentctl:
        execution_processes.terminate_process(who, STOP_GRACE)
    execution_processes.kill_leftovers(execution.id)
    left = execution_processes.find_processes(execution.id)
    return not left.agentctl and not left.others
