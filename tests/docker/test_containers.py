"""Containers of sessions: found again, restarted, recreated, and recognised as dead or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.containers.sites import container_name
from executors_app.wire.errors import AgentctlRefused, LaunchFailed, RuntimeUnavailable
from executors_app.wire.executions import Launched, LaunchSpec, Observed, WorkspaceState
from tests.docker.harness import DockerHarness
from tests.executors.harness import known, observe_one, row_of, seen, spec_for, start_agent
from tests.waiting import eventually

EATER = "import mmap; m = mmap.mmap(-1, 1 << 30); [m.write(b'x' * 1048576) for _ in range(1024)]"
"""A program that needs more memory than its container has."""


async def test_port_is_read_again_after_a_container_restart(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    with harness.client() as client:
        client.restart(launched.container_id, timeout=5)
    facts = row_of(harness, spec, launched)
    again = await harness.runtime.launch(known(spec, launched))
    seen = await observe_one(harness, facts)
    assert (seen.observed, seen.url) == (Observed.ALIVE, again.url)
    assert again.url != launched.url
    assert again.container_id == launched.container_id


async def test_stopped_container_is_started_by_launch_not_by_observe(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    with harness.client() as client:
        client.stop(launched.container_id, timeout=5)
    seen = await observe_one(harness, row_of(harness, spec, launched))
    assert (seen.observed, seen.reason) == (Observed.DEAD, "container_stopped")
    assert harness.inspect(spec)["State"]["Status"] == "exited"
    again = await harness.runtime.launch(known(spec, launched))
    assert again.container_id == launched.container_id


async def test_removed_container_is_dead_and_launch_keeps_its_worktree(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    (seen(harness, launched) / "mine").write_text("uncommitted\n")
    await start_agent(harness, spec, launched, "first")
    with harness.client() as client:
        client.remove_container(launched.container_id, force=True)
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.reason, found.workspace) == (Observed.DEAD, "container_gone", WorkspaceState.PRESENT)
    assert harness.runtime.unread_journal(row_of(harness, spec, launched), 0, ""), "the journal is on this disk"
    assert harness.runtime.resume_token(row_of(harness, spec, launched))
    again = await harness.runtime.launch(known(spec, launched))
    assert again.container_id != launched.container_id
    assert (seen(harness, again) / "mine").read_text() == "uncommitted\n"


async def test_container_missing_on_another_engine_is_not_dead(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    facts = row_of(harness, spec, launched, state={**launched.state, "engine": "another engine"})
    with harness.client() as client:
        client.remove_container(launched.container_id, force=True)
    seen = await observe_one(harness, facts)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "other_host")


async def test_outdated_stopped_container_is_recreated(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    with harness.client() as client:
        client.stop(launched.container_id, timeout=5)
    limited = replace(known(spec, launched), config={"memory_mb": 512})
    again = await harness.runtime.launch(limited)
    assert again.container_id != launched.container_id
    assert harness.inspect(spec)["HostConfig"]["Memory"] == 512 << 20
    with harness.client() as client:
        client.stop(again.container_id, timeout=5)
        client.disconnect_container_from_network(again.container_id, container_name(spec.execution_id), force=True)
        client.remove_network(container_name(spec.execution_id))
    assert (await harness.runtime.launch(limited)).boot_id != again.boot_id


async def test_out_of_memory_container_is_reported(harness: DockerHarness, spec: LaunchSpec) -> None:
    limited = replace(spec, config={"memory_mb": 128})
    launched = await harness.runtime.launch(limited)
    # Only root can make the kernel choose the first process; the agent cannot.
    agentctl = harness.inspect(spec)["State"]["Pid"]
    Path(f"/proc/{agentctl}/oom_score_adj").write_text("1000")
    harness.run(spec, "python3", "-I", "-c", EATER)
    eventually(
        lambda: harness.inspect(spec)["State"]["Status"] == "exited", timeout=60, describe="the container was killed"
    )
    seen = await observe_one(harness, row_of(harness, spec, launched))
    assert (seen.observed, seen.reason) == (Observed.DEAD, "out_of_memory")


async def test_foreign_container_with_our_name_is_left_alone(
    harness: DockerHarness, spec: LaunchSpec, settings: Any
) -> None:
    with harness.client() as client:
        client.create_container(settings.KANDEV_AGENTCTL_IMAGE, name=container_name(spec.execution_id))
    try:
        with pytest.raises(LaunchFailed, match="does not belong to this session"):
            await harness.runtime.launch(spec)
        assert await harness.runtime.end(row_of(harness, spec)) is False
        assert harness.inspect(spec)["State"]["Status"] == "created"
    finally:
        with harness.client() as client:
            client.remove_container(container_name(spec.execution_id))


async def test_missing_image_is_reported_and_never_pulled(harness: DockerHarness, spec: LaunchSpec) -> None:
    with pytest.raises(RuntimeUnavailable, match="no image 'never-built'"):
        await harness.runtime.launch(replace(spec, config={"image": "never-built"}))
    with pytest.raises(RuntimeUnavailable, match="no image 'never-built'"):
        await harness.runtime.check_availability({"image": "never-built"})


async def test_availability_check_reports_a_missing_engine(harness: DockerHarness, settings: Any) -> None:
    settings.KANDEV_DOCKER_HOST = "unix:///nowhere/docker.sock"
    with pytest.raises(RuntimeUnavailable, match="cannot be reached"):
        await harness.runtime.check_availability({})


async def test_container_that_exits_on_startup_is_reported_with_its_log(
    harness: DockerHarness, spec: LaunchSpec
) -> None:
    with pytest.raises(LaunchFailed, match="token needs at least"):
        await harness.runtime.launch(replace(spec, auth_token="short"))


async def test_paused_container_is_unknown_and_resumes_with_launch(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    with harness.client() as client:
        client.pause(launched.container_id)
    seen = await observe_one(harness, row_of(harness, spec, launched))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "container_paused")
    again = await harness.runtime.launch(known(spec, launched))
    assert (again.boot_id, again.found) == (launched.boot_id, True)


async def test_observing_many_containers_takes_one_request(harness: DockerHarness) -> None:
    rows = []
    for _ in range(3):
        one = spec_for(harness)
        rows.append(row_of(harness, one, await harness.runtime.launch(one)))
    calls = len(harness.engine.calls())
    seen = await harness.runtime.observe(rows, timeout=10, concurrency=5)
    assert {one.observed for one in seen.values()} == {Observed.ALIVE}
    requests = [call for call in harness.engine.calls()[calls:] if not call.endswith("/_ping")]
    assert len(requests) == 1
    assert "/containers/json?" in requests[0]


async def test_agent_out_of_memory_alone_is_reported(harness: DockerHarness, spec: LaunchSpec) -> None:
    launched = await harness.runtime.launch(replace(spec, config={"memory_mb": 256}))
    with pytest.raises(AgentctlRefused, match="the agent ended out of memory"):
        await start_agent(harness, spec, launched, "first", argv=["python3", "-I", "-c", EATER])
    assert (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.ALIVE
