"""Executions without a good answer are checked while others are still awaited, a group at a time."""

from __future__ import annotations

import asyncio

import pytest

from executors_app.machine import local_machine
from executors_app.machine.local_machine import FollowUpChecks
from executors_app.machine.process import execution_processes
from executors_app.machine.process.execution_processes import ExecutionProcesses
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError
from executors_app.wire.executions import Observation, Observed
from tests.waiting import eventually_async

REFUSED = AgentctlUnreachable("Nothing listens there.", reason="refused")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with one entry for each scan of the machine's processes."""
    made: list[int] = []

    def find_none() -> dict[str, ExecutionProcesses]:
        made.append(1)
        return {}

    monkeypatch.setattr(execution_processes, "find_all_processes", find_none)
    return made


async def dead(execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> Observation:
    return Observation(Observed.DEAD, execution_id)


async def test_checks_do_not_wait_for_pending_answers(passes: list[int]) -> None:
    async with asyncio.TaskGroup() as group:
        closer = FollowUpChecks(group, dead, 4)
        closer.add("first", REFUSED)
        await eventually_async(lambda: "first" in closer.observations, describe="the first session is checked")
        closer.add("second", REFUSED)
        closer.finish_adding()
    assert {key: seen.reason for key, seen in closer.observations.items()} == {"first": "first", "second": "second"}
    assert len(passes) == 2, "the second session had not failed before the first check"


async def test_concurrent_failures_share_one_process_scan(passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_machine, "GROUPING_WINDOW", 60.0)
    async with asyncio.TaskGroup() as group:
        closer = FollowUpChecks(group, dead, 4)
        for number in range(20):
            closer.add(str(number), REFUSED)
            await asyncio.sleep(0)
        closer.finish_adding()
    assert len(closer.observations) == 20
    assert len(passes) == 1


async def test_processes_are_not_scanned_without_failures(passes: list[int]) -> None:
    async with asyncio.TaskGroup() as group:
        FollowUpChecks(group, dead, 4).finish_adding()
    assert passes == []


async def test_failed_check_raises_for_every_caller(passes: list[int]) -> None:
    async def fail(execution_id: str, processes: ExecutionProcesses, error: ExecutorError) -> Observation:
        raise OSError("no /proc")

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with asyncio.TaskGroup() as group:
            closer = FollowUpChecks(group, fail, 4)
            closer.add("first", REFUSED)
            closer.finish_adding()
