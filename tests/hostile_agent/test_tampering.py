"""Nothing that an agent leaves in its sandbox affects the control plane or other sessions."""

from __future__ import annotations

import asyncio
import os
import shutil
from itertools import product
from pathlib import Path

import pytest

from tests.hostile_agent.actions import Victim
from tests.hostile_agent.scenario import SANDBOX_TRAP, AttackScenario
from tests.hostile_agent.tampering import BROKEN, CONFIGURE, LAY_TRAP, MILD, settings_text

pytestmark = pytest.mark.django_db
RUNTIMES = pytest.mark.parametrize("runtime_name", ["local_docker", "remote_docker"])
STORED_FORMS = ("command", "directory")
"""Forms of settings that are also tried on what an ended session has stored."""
LIVE_FORMS = ("alias", "address", "file")
"""Forms that are tried on a running agentctl alone, which is the same on every engine."""
PLACES = ("host", "inside")


def restore(victim: Victim, original: Path) -> None:
    """Restore the workspace from before the tampering, as the agent's own files."""
    for path in victim.directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(original, victim.directory, symlinks=True, dirs_exist_ok=True)
    uid, gid = (int(number) for number in victim.harness.user.split(":"))
    for path in (victim.directory, *victim.directory.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)


async def start_session(scenario: AttackScenario, tmp_path: Path) -> tuple[Victim, Path]:
    """Start a session; return it with a copy of its workspace from before the tampering."""
    victim, original = await Victim.start_session(scenario), tmp_path / "original"
    shutil.copytree(victim.directory, original, symlinks=True)
    victim.run(LAY_TRAP)
    return victim, original


async def restart_or_restore(victim: Victim, original: Path) -> None:
    """Start the session again; if the agent made its own workspace unusable, restore it first."""
    if not await victim.restart():
        restore(victim, original)
        assert await victim.restart(), victim.failure_report()


async def run_lifecycle(victim: Victim, original: Path) -> None:
    """Use the session while it runs and after it died, and restart it with and without its work tree."""
    await victim.use_live_agentctl()
    await victim.use_stored_state()
    await restart_or_restore(victim, original)
    await victim.use_live_agentctl()
    victim.delete_worktree()
    await victim.use_stored_state()
    await restart_or_restore(victim, original)
    await victim.use_live_agentctl()


async def finish(victim: Victim) -> None:
    """Use the stored state once more, then end the container and remove it."""
    await victim.use_stored_state()
    await victim.harness.runtime.end(victim.row)
    await victim.remove_orphans()


@RUNTIMES
def test_mild_tampering_reaches_nothing(scenario: AttackScenario, tmp_path: Path) -> None:
    async def run_scenario() -> Victim:
        victim, original = await start_session(scenario, tmp_path)
        for trap in (scenario.trap, SANDBOX_TRAP):
            for name, script in MILD.items():
                code, output = victim.run(script, str(trap.script))
                assert code == 0, f"{name}: {output}"
            await run_lifecycle(victim, original)
            scenario.check_isolation(victim.spec, victim.launched)
            restore(victim, original)
            await restart_or_restore(victim, original)
        await finish(victim)
        return victim

    victim = asyncio.run(run_scenario())
    scenario.check_isolation(victim.spec, victim.launched)
    victim.delete()
    scenario.check_isolation(victim.spec, victim.launched)


@RUNTIMES
def test_no_setting_of_git_reaches_anything(scenario: AttackScenario, runtime_name: str, tmp_path: Path) -> None:
    async def run_scenario() -> Victim:
        victim, original = await start_session(scenario, tmp_path)
        live = [*product(LIVE_FORMS, PLACES), ("true", "host")] if runtime_name == "local_docker" else []
        for form, place in [*product(STORED_FORMS, PLACES), *live]:
            root = scenario.trap.root if place == "host" else SANDBOX_TRAP.root
            code, output = victim.run(CONFIGURE, settings_text(root, form))
            assert code == 0, output
            await victim.use_live_agentctl()
            if form in STORED_FORMS:
                await victim.use_stored_state()
                await restart_or_restore(victim, original)
                victim.delete_worktree()
                await victim.use_stored_state()
                await restart_or_restore(victim, original)
            scenario.check_isolation(victim.spec, victim.launched)
            restore(victim, original)
        await finish(victim)
        return victim

    victim = asyncio.run(run_scenario())
    victim.delete()
    scenario.check_isolation(victim.spec, victim.launched)


async def apply_in_turn(scenario: AttackScenario, names: list[str], tmp_path: Path) -> Victim:
    """Apply one tampering after the other, and check the isolation after each."""
    (victim, original), failures = await start_session(scenario, tmp_path), list[str]()
    for name in names:
        code, output = victim.run(BROKEN[name])
        victim.refusals.append(f"{name}: {code} {output}")
        try:
            await victim.use_live_agentctl()
            await victim.use_stored_state()
            await restart_or_restore(victim, original)
            scenario.check_isolation(victim.spec, victim.launched)
        except Exception as error:  # noqa: BLE001 - reported below with the name of the tampering
            failures.append(f"{name}: {type(error).__name__}: {error}")
            scenario.outputs.clear()
        restore(victim, original)
    await finish(victim)
    assert not failures, "\n".join(failures)
    return victim


@RUNTIMES
@pytest.mark.parametrize("part", range(4))
def test_no_broken_workspace_reaches_anything(scenario: AttackScenario, part: int, tmp_path: Path) -> None:
    victim = asyncio.run(apply_in_turn(scenario, list(BROKEN)[part::4], tmp_path))
    victim.delete()
    scenario.check_isolation(victim.spec, victim.launched)
