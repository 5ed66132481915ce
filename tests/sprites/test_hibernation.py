"""Sprites that sleep and wake: frozen processes continue, and a cold sprite starts its service again."""

from __future__ import annotations

import shutil
import signal

from executors_app.machine.process import identity
from executors_app.wire.executions import Observed, WorkspaceState
from tests.executors.harness import client_of, known, observe_one, row_of, seen, spec_for, start_agent
from tests.executors.launches import only_agentctl
from tests.sprites.harness import SpritesHarness
from tests.waiting import eventually_async


async def test_sprite_pauses_only_after_its_agent_has_exited(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    machine = harness.machine(spec)
    await start_agent(harness, spec, launched, "first")
    await eventually_async(lambda: bool(machine.tasks), describe="the sprite is kept awake")
    assert harness.sprites_api.do(machine.make_warm()) is False

    await client_of(spec, launched).stop_agent(5, "stop")
    await eventually_async(lambda: not machine.tasks, describe="the sprite may sleep")
    assert harness.sprites_api.do(machine.make_warm()) is True
    assert machine.status == "warm"


async def test_frozen_sprite_is_woken_by_status_and_continues(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    machine = harness.machine(spec)
    assert harness.sprites_api.do(machine.make_warm()) is True
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, machine.status) == (Observed.ALIVE, "running")
    assert found.report is not None
    assert found.report["boot_id"] == launched.boot_id


async def test_drill_cold_sprite_is_dead_and_launch_restores_its_conversation(
    harness: SpritesHarness,
) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    started = await start_agent(harness, spec, launched, "first")
    journal = (await client_of(spec, launched).status())["journal"]
    machine = harness.machine(spec)
    harness.sprites_api.do(machine.make_cold())
    wakes = machine.wakes

    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.reason, found.workspace) == (
        *(Observed.DEAD, "sprite_cold"),
        WorkspaceState.PRESENT,
    )
    assert (machine.status, machine.wakes) == ("cold", wakes), "an observation does not wake the sprite"

    harness.sprites_api.calls.clear()
    again = await harness.runtime.launch(known(spec, launched))
    assert again.found, "the sprite itself has started the service"
    assert not [call for call in harness.sprites_api.calls if call.startswith("PUT")]
    assert (again.boot_id != launched.boot_id, again.url) == (True, launched.url)
    outcome = await start_agent(harness, spec, again, "second", started["resume_token"])
    assert outcome["outcome"] == "loaded"
    assert (await client_of(spec, again).status())["journal"]["epoch"] == journal["epoch"]


async def test_cold_sprite_gets_deleted_worktree_back_before_its_service(
    harness: SpritesHarness,
) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    worktree = seen(harness, launched)
    harness.sprites_api.do(harness.machine(spec).make_cold())
    shutil.rmtree(worktree)
    again = await harness.runtime.launch(known(spec, launched))
    assert not again.found
    assert (worktree / ".git").exists()


async def test_agentctl_that_dies_alone_is_restarted_by_its_sprite(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    agentctl = only_agentctl(spec.execution_id)
    identity.send_signal(agentctl, signal.SIGKILL)

    async def is_back() -> bool:
        found = await observe_one(harness, row_of(harness, spec, launched))
        return found.report is not None and found.report["boot_id"] != launched.boot_id

    await eventually_async(is_back, describe="the next agentctl answers")


async def test_stopped_session_stays_stopped_over_a_cold_boot(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    facts = row_of(harness, spec, launched)
    assert await harness.runtime.end(facts) is True
    machine = harness.machine(spec)
    harness.sprites_api.do(machine.make_cold())
    harness.sprites_api.do(machine.wake())
    found = await observe_one(harness, facts)
    assert (found.observed, found.reason) == (Observed.DEAD, "service_stopped")


async def test_tunnel_ends_with_pause_and_next_connection_wakes_sprite(
    harness: SpritesHarness,
) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    client, machine = client_of(spec, launched), harness.machine(spec)
    epoch = (await client.status())["journal"]["epoch"]
    async with client.events(0, epoch):
        await eventually_async(lambda: bool(machine.tunnels), describe="the stream is open")
        harness.sprites_api.do(machine.make_warm())
        await eventually_async(lambda: not machine.tunnels, describe="the stream has closed")
    assert (await client.status())["boot_id"] == launched.boot_id
