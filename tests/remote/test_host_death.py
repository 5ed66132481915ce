"""A host daemon may die at any moment: what it started continues and is found again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess

import pytest

from executors_app.runtimes.remote.runtime import Remote
from executors_app.wire.errors import AgentctlUnreachable
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from tests.drills.session_steps import wait_for_first_turn, wait_until_talking
from tests.executors.harness import client_of, known, observe_one, row_of, start_agent
from tests.executors.launches import only_agentctl
from tests.remote.deployment import RemoteDeployment
from tests.remote.harness import RemoteHarness
from tests.waiting import eventually, eventually_async

pytestmark = pytest.mark.any_database


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
async def test_instances_outlive_the_daemon_and_are_found_again(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, number: int
) -> None:
    await start_agent(harness, spec, launched, "first")
    before = await client_of(spec, launched).status()
    harness.machine.stop(number)

    gone = await observe_one(harness, row_of(harness, spec, launched))
    assert (gone.observed, gone.reason) == (Observed.UNKNOWN, "refused")
    assert only_agentctl(spec.execution_id)

    harness.machine.start()
    harness.runtime = Remote()
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.url) == (Observed.ALIVE, launched.url)
    assert await client_of(spec, launched).status() == before
    again = await harness.runtime.launch(known(spec, launched))
    assert (again.found, again.boot_id) == (True, launched.boot_id)


async def test_stream_of_a_dying_host_continues_after_its_last_line(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    await start_agent(harness, spec, launched, "first")
    client = client_of(spec, launched)
    last = (await client.status())["journal"]["last_seq"]
    with pytest.raises(AgentctlUnreachable):
        async with client.events(0, "") as stream:
            lines = await anext(aiter(stream))
            harness.machine.stop()
            async for batch in stream:
                lines += batch
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))

    harness.machine.start()
    async with client.events(lines[0]["seq"], lines[0]["epoch"]) as stream:
        rest = await anext(aiter(stream))
    assert [line["seq"] for line in rest][:1] == [2]
    assert last >= 2


async def test_launch_interrupted_by_host_death_is_finished_once(harness: RemoteHarness, spec: LaunchSpec) -> None:
    launching = asyncio.create_task(harness.runtime.launch(spec))
    state = harness.machine.root / "agentctl" / spec.execution_id / "instance.json"
    await eventually_async(state.exists, describe="the host has stored the order")
    harness.machine.stop()
    await asyncio.to_thread(harness.machine.start)
    made = await launching
    assert (await observe_one(harness, row_of(harness, spec, made))).observed is Observed.ALIVE
    assert only_agentctl(spec.execution_id)


def test_second_daemon_on_the_same_root_exits(harness: RemoteHarness) -> None:
    there = harness.machine
    second = subprocess.run(
        there.arguments(), capture_output=True, timeout=30, check=False, env=there.environment, stdin=subprocess.DEVNULL
    )
    assert second.returncode == 3
    assert json.loads(second.stdout)["url"] == there.url


def test_killed_host_loses_nothing_of_a_working_session(deployment: RemoteDeployment) -> None:
    deployment.serve()
    session = deployment.start_session("work 12")
    session.wait_for("RUNNING")
    wait_until_talking(session)
    before = session.lasting_pids()

    deployment.machine.stop()
    received = session.agent_log()
    eventually(lambda: len(session.agent_log()) > len(received), describe="the agent keeps writing")
    deployment.machine.start()

    session.wait_for("WAITING_FOR_INPUT", timeout=90)
    wait_for_first_turn(session)
    eventually(lambda: session.agent_text() == session.agent_log(), describe="the event log has all output")
    assert session.lasting_pids() == before
    assert session.names().count("session.run.started") == 1
    assert session.names().count("session.run.completed") == 1
    assert "session.run.interrupted" not in session.names()
    assert [row["state"] for row in session.prompts()] == ["done"]
