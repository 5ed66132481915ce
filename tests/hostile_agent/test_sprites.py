"""A sprite is under the agent's control: what it sends may change only its own archive and refs.

The sprites of the fake API are directories of this machine, so commands may run in there; none may run as the control
plane's git, which is known by its environment.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from executors_app.repositories import recovery_refs, workspace_store
from executors_app.runtimes.sprites.organisation import sprite_name
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import Launched, LaunchSpec
from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.files import clean_journals, clean_recovery_refs
from sessions_app.models import Leftover
from tests.executors.harness import client_of, known, row_of, seen, spec_for
from tests.executors.repositories import make_repository, run_git
from tests.hostile_agent.tampering import BROKEN, MILD, settings_text
from tests.repositories.attacks import Trap
from tests.sprites.conftest import harness, repository, sprites_api  # noqa: F401 - fixtures
from tests.sprites.harness import SpritesHarness
from tests.waiting import PATIENCE

CONTROL_PLANE_HOME = "HOME=/nonexistent"
"""Identifies the environment of the control plane's git."""


@pytest.mark.parametrize("with_settings", [False, True])
async def test_tampered_sprite_reaches_no_other_session(
    harness: SpritesHarness,  # noqa: F811
    tmp_path: Path,
    with_settings: bool,
) -> None:
    trap = Trap(tmp_path / "trap").set_up()
    trap.script.write_text(f"#!/bin/sh\nenv >> '{trap.canary}'\ncat\n")
    spec, other = spec_for(harness), spec_for(harness)
    theirs, launched = await harness.runtime.launch(other), await harness.runtime.launch(spec)
    (seen(harness, theirs) / "theirs").write_text("theirs\n")
    await client_of(other, theirs).snapshot()
    await harness.runtime.push_work(row_of(harness, other, theirs))
    await client_of(spec, launched).snapshot()
    before = {
        line for line in run_git(harness.repository, "show-ref").splitlines() if launched.worktree_branch not in line
    }
    archived = workspace_store.workspace_archive(other.session_id).tips()
    tree = seen(harness, launched)
    values = {
        "W": tree, "R": tree.parent.parent / "repository.git", "OWN": spec.session_id, "OTHER": other.session_id,
        "RECORD": tree.parent.parent / "repository.git/worktrees" / spec.session_id, "HOST": trap.outside,
        "THEIRS": theirs.worktree_branch, "DATA": tmp_path / "data", "STATE": "/nonexistent",
        "TEAM": harness.repository,
    }  # fmt: skip
    excluded = {"alternates to host directories", "links to the host in the tree", "two thousand refs"}
    for name in MILD.keys() - excluded:
        environment = {**os.environ, **{name: str(value) for name, value in values.items()}}
        words = ["sh", "-c", MILD[name], "sh", str(trap.script)]
        await asyncio.to_thread(subprocess.run, words, cwd=tree, env=environment, check=False)
    if with_settings:
        with (tree.parent.parent / "repository.git/config").open("a") as config:
            config.write(settings_text(trap.root, "command"))
    row = row_of(harness, spec, launched)
    for _ in range(2):
        for action in (
            client_of(spec, launched).snapshot(),
            harness.runtime.push_work(row),
            harness.runtime.observe([row], timeout=PATIENCE, concurrency=1),
        ):
            with suppress(ExecutorError):
                await action
        harness.kill(spec)
        try:
            launched = await harness.runtime.launch(known(spec, launched))
        except ExecutorError:
            break
    own = (launched.worktree_branch, spec.session_id)
    after = {
        line for line in run_git(harness.repository, "show-ref").splitlines() if not any(name in line for name in own)
    }
    assert after == before
    assert workspace_store.workspace_archive(other.session_id).tips() == archived
    assert not trap.canary.exists() or CONTROL_PLANE_HOME not in trap.canary.read_text()


UNSAFE_WITH_FAKE_API = {"the tree is a link to a process", "the index has no end", "the copy of the index is a link"}
"""Tampering that would reach files of this machine, because the fake API does not isolate sprites."""


class Sprite:
    """A hostile session in a sprite, and another session's refs, which must not change."""

    def __init__(self, harness: SpritesHarness, root: Path):  # noqa: F811
        self.harness, self.root, self.spec = harness, root, spec_for(harness)
        self.launched: Launched
        self.other: tuple[LaunchSpec, Launched]

    async def start_session(self) -> None:
        """Launch both sessions with stored work, and copy the hostile session's workspace."""
        other = spec_for(self.harness)
        self.other = (other, await self.harness.runtime.launch(other))
        self.launched = await self.harness.runtime.launch(self.spec)
        for spec, launched in (self.other, (self.spec, self.launched)):
            (seen(self.harness, launched) / "mine").write_text(f"{spec.session_id}\n")
            await client_of(spec, launched).snapshot()
            await self.harness.runtime.push_work(row_of(self.harness, spec, launched))
        self.work = seen(self.harness, self.launched).parent.parent
        self.original = self.root / "original"
        shutil.copytree(self.work, self.original, symlinks=True)
        self.before = self.other_refs()

    def other_refs(self) -> tuple[set[str], dict[str, str]]:
        """Return the refs of the team's repository except the hostile session's, and those of the other archive."""
        own = (self.launched.worktree_branch, self.spec.session_id)
        listed = run_git(self.harness.repository, "show-ref").splitlines()
        archive = workspace_store.workspace_archive(self.other[0].session_id)
        return {line for line in listed if not any(name in line for name in own)}, archive.tips()

    def tamper(self, script: str) -> None:
        """Run a script as the agent; paths of the host are decoys, because a real sprite is another machine."""
        decoy = self.root / "decoy"
        if not decoy.exists():
            (make_repository(decoy) / "token").write_text("decoy\n")
        tree = self.work / "worktrees" / self.spec.session_id
        values = {
            "W": tree, "R": self.work / "repository.git", "OWN": self.spec.session_id, "HOST": decoy, "STATE": decoy,
            "RECORD": self.work / "repository.git/worktrees" / self.spec.session_id, "TEAM": decoy, "DATA": decoy,
        }  # fmt: skip
        script = script.replace("/workspace", str(self.work)).replace("/var/lib/agentctl", str(decoy))
        environment = {**os.environ, **{name: str(value) for name, value in values.items()}}
        subprocess.run(["sh", "-c", script], cwd=tree, env=environment, check=False, capture_output=True)

    def restore(self) -> None:
        """Restore the workspace from before the tampering."""
        shutil.rmtree(self.work)
        shutil.copytree(self.original, self.work, symlinks=True)

    async def attempt(self, action: Awaitable[Any]) -> bool:
        """Run an action; return False if it is refused."""
        try:
            async with asyncio.timeout(60):
                await action
        except ExecutorError:
            return False
        return True

    async def run_lifecycle(self) -> None:
        """Use the session while it runs and after it died, then restart it, restoring its workspace if needed."""
        runtime, client = self.harness.runtime, client_of(self.spec, self.launched)
        row = row_of(self.harness, self.spec, self.launched)
        alive: list[Awaitable[Any]] = [client.snapshot(), client.git("diff")]
        for action in [*alive, runtime.push_work(row)]:
            await self.attempt(action)
        self.harness.kill(self.spec)
        await runtime.observe([row], timeout=PATIENCE, concurrency=1)
        dead: list[Awaitable[Any]] = [
            asyncio.to_thread(runtime.unread_journal, row, 0, ""),
            asyncio.to_thread(runtime.resume_token, row),
        ]
        for action in [*dead, runtime.push_work(row)]:
            await self.attempt(action)
        saved = recovery_refs.find_saved_work(
            self.harness.repository, self.spec.session_id, self.launched.worktree_branch
        )
        for read in (recovery_refs.saved_status, recovery_refs.saved_diff):
            read(saved)
        if not await self.attempt(self.launch()):
            self.restore()
            await self.launch()

    async def launch(self) -> None:
        """Start the session again from its stored row."""
        self.launched = await self.harness.runtime.launch(known(self.spec, self.launched))

    async def remove_orphan(self) -> None:
        """Remove the sprite as an orphan, as if no row referred to it."""
        runtime = self.harness.runtime
        (orphan,) = await runtime.orphans({self.other[0].execution_id}, [self.harness.config])
        assert orphan.id == sprite_name(self.spec.execution_id)
        assert await runtime.remove_orphan(orphan, [self.harness.config])
        assert list(self.harness.sprites_api.machines) == [sprite_name(self.other[0].execution_id)]

    def delete(self) -> None:
        """Delete the session and run maintenance as if 400 days had passed."""
        Leftover.objects.create(
            session_id=self.spec.session_id,
            executions=[self.spec.execution_id],
            repository_path=str(self.harness.repository),
            deleted_at=timezone.now() - timedelta(days=400),
        )
        for chore in (clean_recovery_refs, clean_journals):
            work = ChoreRun(chore.__name__)
            chore(work)
            assert not work.failed, work.said


@pytest.mark.django_db
@pytest.mark.parametrize("part", range(6))
def test_no_broken_workspace_of_a_sprite_reaches_anything(
    harness: SpritesHarness,  # noqa: F811
    tmp_path: Path,
    part: int,
) -> None:
    sprite = Sprite(harness, tmp_path)

    async def run_scenario() -> None:
        await sprite.start_session()
        for name in [name for name in BROKEN if name not in UNSAFE_WITH_FAKE_API][part::6]:
            sprite.tamper(BROKEN[name])
            await sprite.run_lifecycle()
            assert sprite.other_refs() == sprite.before, name
            sprite.restore()
        await sprite.remove_orphan()

    asyncio.run(run_scenario())
    sprite.delete()
    assert sprite.other_refs() == sprite.before
