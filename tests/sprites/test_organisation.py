"""Many sprites of one organisation: their ownership, an unreachable API, and the transfer of work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl_client.tunnels import tunnel_host_header
from executors_app.runtimes import SupportsOrphans, SupportsPush
from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.config import read_sprites_config
from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable, WorkspaceGone
from executors_app.wire.executions import Observed, WorkspaceState
from tests.executors.harness import client_of, known, observe_one, row_of, seen, spec_for
from tests.executors.repositories import commit, run_git
from tests.sprites.harness import SpritesHarness
from tests.sprites.machine import Machine
from tests.waiting import PATIENCE


async def test_unreachable_api_proves_nothing_and_gets_no_commands(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    harness.sprites_api.away = True
    harness.sprites_api.calls.clear()
    facts = row_of(harness, spec, launched)
    found = await observe_one(harness, facts)
    assert (found.observed, found.reason) == (Observed.UNKNOWN, "runtime_unavailable")
    assert harness.sprites_api.calls == ["GET /v1/sprites"]
    assert await harness.runtime.end(facts) is False
    with pytest.raises((RuntimeUnavailable, LaunchFailed)):
        await harness.runtime.launch(known(spec, launched))
    harness.sprites_api.away = False
    assert (await observe_one(harness, facts)).observed is Observed.ALIVE


@pytest.mark.parametrize("token", ["", "a token of yesterday"])
async def test_missing_or_wrong_token_is_reported(token: str, harness: SpritesHarness, settings: Any) -> None:
    settings.KANDEV_SPRITES_TOKEN = token
    with pytest.raises(RuntimeUnavailable, match=r"KANDEV_SPRITES_TOKEN|Authentication failed"):
        await harness.runtime.check_availability(harness.config)
    found = await observe_one(harness, row_of(harness, spec_for(harness)))
    assert (found.observed, found.reason) == (Observed.UNKNOWN, "runtime_unavailable")


async def test_observing_many_sprites_lists_once_and_wakes_none(harness: SpritesHarness) -> None:
    specs = [spec_for(harness) for _ in range(120)]
    for spec in specs:
        name = organisation.sprite_name(spec.execution_id)
        harness.sprites_api.machines[name] = Machine(name, [organisation.deployment_label()])
    rows = [row_of(harness, spec, worktree_path="/somewhere", worktree_branch="b") for spec in specs]
    found = await harness.runtime.observe(rows, timeout=PATIENCE, concurrency=10)
    assert {(one.observed, one.reason) for one in found.values()} == {(Observed.DEAD, "sprite_cold")}
    assert harness.sprites_api.calls == ["GET /v1/sprites"] * 3


async def test_sprite_of_another_deployment_is_neither_used_nor_ended(harness: SpritesHarness) -> None:
    spec = spec_for(harness)
    name = organisation.sprite_name(spec.execution_id)
    harness.sprites_api.machines[name] = Machine(name, ["kandev-of-somebody-else"], status="running")
    found = await observe_one(harness, row_of(harness, spec))
    assert (found.observed, found.reason) == (Observed.UNKNOWN, "foreign")
    with pytest.raises(LaunchFailed, match="another deployment"):
        await harness.runtime.launch(spec)
    assert await harness.runtime.end(row_of(harness, spec)) is False


async def test_orphans_are_listed_and_removed_by_their_label(harness: SpritesHarness) -> None:
    assert isinstance(harness.runtime, SupportsOrphans)
    ours, theirs, unnamed = (organisation.sprite_name(spec_for(harness).execution_id) for _ in range(3))
    for name, labels in ((ours, [organisation.deployment_label()]), (theirs, ["kandev-x"]), (unnamed, [])):
        harness.sprites_api.machines[name] = Machine(name, labels)
    (orphan,) = await harness.runtime.orphans(set(), [{}])
    assert (orphan.id, await harness.runtime.orphans({orphan.execution_id}, [{}])) == (ours, [])
    harness.sprites_api.machines[ours].labels = ["kandev-x"]
    assert await harness.runtime.remove_orphan(orphan, [{}]) is False
    harness.sprites_api.machines[ours].labels = [organisation.deployment_label()]
    assert await harness.runtime.remove_orphan(orphan, [{}]) is True
    assert set(harness.sprites_api.machines) == {theirs, unnamed}


async def test_removed_sprite_is_rebuilt_from_its_arrived_work(harness: SpritesHarness) -> None:
    assert isinstance(harness.runtime, SupportsPush)
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    facts, worktree = row_of(harness, spec, launched), seen(harness, launched)
    head = commit(worktree, "done", "committed\n")
    (worktree / "half").write_text("not committed\n")
    await client_of(spec, launched).snapshot()

    assert await harness.runtime.push_work(facts) is True
    assert await harness.runtime.push_work(facts) is False
    assert run_git(harness.repository, "rev-parse", launched.worktree_branch) == head

    _remove(harness, spec.execution_id)
    found = await observe_one(harness, facts)
    assert (found.observed, found.reason, found.workspace) == (
        *(Observed.DEAD, "sprite_gone"),
        WorkspaceState.REBUILDABLE,
    )
    again = await harness.runtime.launch(known(spec, launched))
    assert "had arrived" in again.state["rebuilt"]
    assert (seen(harness, again) / "half").read_text() == "not committed\n"


async def test_removed_sprite_without_arrived_work_is_not_replaced(
    harness: SpritesHarness,
) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    _remove(harness, spec.execution_id)
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.GONE)
    assert organisation.sprite_name(spec.execution_id) in found.workspace_reason
    with pytest.raises(WorkspaceGone):
        await harness.runtime.launch(known(spec, launched))


def _remove(harness: SpritesHarness, execution_id: str) -> None:
    machine = harness.sprites_api.machines.pop(organisation.sprite_name(execution_id))
    harness.sprites_api.do(machine.make_cold())
    shutil.rmtree(Path(organisation.sprite_root(execution_id)))


@pytest.mark.parametrize("python", ["python3", 3, None])
def test_python_without_an_absolute_path_is_refused(python: Any) -> None:
    with pytest.raises(ValueError, match=r"^python must be .+\.$"):
        read_sprites_config({"python": python})


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://kandev-1.sprite.invalid:20001", {"Host": "localhost:20001"}),
        ("http://127.0.0.1:20001", {}),
        ("http://sprite.invalid.example:1", {}),
        ("http://kandev-1.sprite.invalid:x", {}),
        ("\0", {}),
    ],
)
def test_only_sprite_addresses_use_a_tunnel(url: str, header: dict[str, str]) -> None:
    assert tunnel_host_header(url) == header
