"""Whatever an agent leaves in its sandbox, the control plane and other sessions are not touched by it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.hostile_agent.actions import Victim
from tests.hostile_agent.tampering import BROKEN, CONFIGURE, LAY_TRAP, MILD, settings_text
from tests.hostile_agent.world import INSIDE, World

pytestmark = pytest.mark.django_db
RUNTIMES = pytest.mark.parametrize("runtime_name", ["local_docker", "remote_docker"])
SETTINGS = [
    (form, root) for form in ("command", "alias", "address", "directory", "file", "true") for root in ("host", "inside")
][:-1]


def restore(victim: Victim, good: Path) -> None:
    """The workspace as it was before any tampering."""
    for path in victim.directory.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.copytree(good, victim.directory, symlinks=True, dirs_exist_ok=True)
    if victim.harness.runtime.name == "remote_docker":
        for path in (victim.directory, *victim.directory.rglob("*")):
            shutil.chown(path, 1000, 1000)


async def begin(world: World, tmp_path: Path) -> tuple[Victim, Path]:
    """A session, and a copy of its workspace as it was before any tampering."""
    victim, good = await Victim.begin(world), tmp_path / "good"
    shutil.copytree(victim.directory, good, symlinks=True)
    victim.run(LAY_TRAP)
    return victim, good


async def start_whatever_it_takes(victim: Victim, good: Path) -> None:
    """The next start; an agent may make its own workspace useless, which the refusal then says."""
    if not await victim.start_again():
        restore(victim, good)
        assert await victim.start_again(), victim.failure_report()


async def go_through(victim: Victim, good: Path) -> None:
    """Live, dead, started again, its tree lost, started again."""
    await victim.look_alive()
    await victim.look_dead()
    await start_whatever_it_takes(victim, good)
    await victim.look_alive()
    victim.lose_tree()
    await victim.look_dead()
    await start_whatever_it_takes(victim, good)
    await victim.look_alive()


async def finish(victim: Victim) -> None:
    """The last look, the end of the container, and its removal."""
    await victim.look_dead()
    await victim.harness.runtime.end(victim.row)
    await victim.remove_orphans()


@RUNTIMES
def test_mild_tampering_reaches_nothing(world: World, tmp_path: Path) -> None:
    async def play() -> Victim:
        victim, good = await begin(world, tmp_path)
        for trap in (world.trap, INSIDE):
            for name, script in MILD.items():
                code, said = victim.run(script, str(trap.script))
                assert code == 0, f"{name}: {said}"
            await go_through(victim, good)
            world.inspect(victim.spec, victim.launched)
            restore(victim, good)
            await start_whatever_it_takes(victim, good)
        await finish(victim)
        return victim

    victim = asyncio.run(play())
    world.inspect(victim.spec, victim.launched)
    victim.delete()
    world.inspect(victim.spec, victim.launched)


@RUNTIMES
def test_no_setting_of_git_reaches_anything(world: World, tmp_path: Path) -> None:
    async def play() -> Victim:
        victim, good = await begin(world, tmp_path)
        for form, where in SETTINGS:
            root = world.trap.root if where == "host" else INSIDE.root
            code, said = victim.run(CONFIGURE, settings_text(root, form))
            assert code == 0, said
            await victim.look_alive()
            if form in ("command", "directory"):
                await victim.look_dead()
                await start_whatever_it_takes(victim, good)
                victim.lose_tree()
                await victim.look_dead()
                await start_whatever_it_takes(victim, good)
            world.inspect(victim.spec, victim.launched)
            restore(victim, good)
        await finish(victim)
        return victim

    victim = asyncio.run(play())
    victim.delete()
    world.inspect(victim.spec, victim.launched)


async def break_in_turn(world: World, names: list[str], tmp_path: Path) -> Victim:
    """One tampering after the other, each with its own look at all that is outside."""
    (victim, good), found = await begin(world, tmp_path), list[str]()
    for name in names:
        code, said = victim.run(BROKEN[name])
        victim.refusals.append(f"{name}: {code} {said}")
        try:
            await victim.look_alive()
            await victim.look_dead()
            await start_whatever_it_takes(victim, good)
            world.inspect(victim.spec, victim.launched)
        except Exception as error:  # noqa: BLE001 - told below, with the tampering's name
            found.append(f"{name}: {type(error).__name__}: {error}")
            world.answers.clear()
        restore(victim, good)
    await finish(victim)
    assert not found, "\n".join(found)
    return victim


@RUNTIMES
@pytest.mark.parametrize("part", range(4))
def test_no_broken_workspace_reaches_anything(world: World, part: int, tmp_path: Path) -> None:
    victim = asyncio.run(break_in_turn(world, list(BROKEN)[part::4], tmp_path))
    victim.delete()
    world.inspect(victim.spec, victim.launched)
