"""A sprite is the agent's whole machine: what it sends reaches its own archive and refs, and nothing else.

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

from executors_app import recovery_refs, workspace_store
from executors_app.domain import Launched, LaunchSpec
from executors_app.errors import ExecutorError
from executors_app.sprites.organisation import sprite_name
from sessions_app.models import Leftover
from sessions_app.services.maintenance.chore_run import ChoreRun
from sessions_app.services.maintenance.files import clean_journals, clean_recovery_refs
from tests.executors.harness import client_of, known, row_of, seen, spec_for
from tests.executors.repositories import make_repository, run_git
from tests.hostile_agent.tampering import BROKEN, MILD, settings_text
from tests.repositories.attacks import Trap
from tests.sprites.conftest import harness, repository, sprites_api  # noqa: F401 - fixtures
from tests.sprites.harness import SpritesHarness

MARK = "HOME=/nonexistent"
"""Of the environment of the control plane's git."""


@pytest.mark.parametrize("settings_too", [False, True])
async def test_tampered_sprite_reaches_no_other_session(
    harness: SpritesHarness,  # noqa: F811
    tmp_path: Path,
    settings_too: bool,
) -> None:
    trap = Trap(tmp_path / "trap").lay()
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
    left_out = {"alternates to host directories", "links to the host in the tree", "two thousand refs"}
    for name in MILD.keys() - left_out:
        environment = {**os.environ, **{name: str(value) for name, value in values.items()}}
        words = ["sh", "-c", MILD[name], "sh", str(trap.script)]
        await asyncio.to_thread(subprocess.run, words, cwd=tree, env=environment, check=False)
    if settings_too:
        with (tree.parent.parent / "repository.git/config").open("a") as config:
            config.write(settings_text(trap.root, "command"))
    row = row_of(harness, spec, launched)
    for _ in range(2):
        for action in (
            client_of(spec, launched).snapshot(),
            harness.runtime.push_work(row),
            harness.runtime.observe([row], timeout=10, concurrency=1),
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
    assert not trap.canary.exists() or MARK not in trap.canary.read_text()


NOT_ON_THIS_MACHINE = {"the tree is a link to a process", "the index has no end", "the copy of the index is a link"}
"""What would reach this machine's own files: the fake API confines nobody."""


class Sprite:
    """A hostile session in a sprite, and another session's refs, which must not change."""

    def __init__(self, harness: SpritesHarness, root: Path):  # noqa: F811
        self.harness, self.root, self.spec = harness, root, spec_for(harness)
        self.launched: Launched
        self.other: tuple[LaunchSpec, Launched]

    async def begin(self) -> None:
        """Both have work that has arrived; a copy of the hostile one's is kept."""
        other = spec_for(self.harness)
        self.other = (other, await self.harness.runtime.launch(other))
        self.launched = await self.harness.runtime.launch(self.spec)
        for spec, launched in (self.other, (self.spec, self.launched)):
            (seen(self.harness, launched) / "mine").write_text(f"{spec.session_id}\n")
            await client_of(spec, launched).snapshot()
            await self.harness.runtime.push_work(row_of(self.harness, spec, launched))
        self.work = seen(self.harness, self.launched).parent.parent
        self.good = self.root / "good"
        shutil.copytree(self.work, self.good, symlinks=True)
        self.before = self.others()

    def others(self) -> tuple[set[str], dict[str, str]]:
        """Refs of the team's repository but the hostile session's own, and those of the other's archive."""
        own = (self.launched.worktree_branch, self.spec.session_id)
        listed = run_git(self.harness.repository, "show-ref").splitlines()
        archive = workspace_store.workspace_archive(self.other[0].session_id)
        return {line for line in listed if not any(name in line for name in own)}, archive.tips()

    def tamper(self, script: str) -> None:
        """Run a script as the agent; what it names of the host are decoys, as the host is another machine."""
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
        """The workspace as it was before any tampering."""
        shutil.rmtree(self.work)
        shutil.copytree(self.good, self.work, symlinks=True)

    async def attempt(self, action: Awaitable[Any]) -> bool:
        """Carry it out; False where it is refused."""
        try:
            async with asyncio.timeout(60):
                await action
        except ExecutorError:
            return False
        return True

    async def go_through(self) -> None:
        """Live, dead, and started again, whatever that takes."""
        runtime, client = self.harness.runtime, client_of(self.spec, self.launched)
        row = row_of(self.harness, self.spec, self.launched)
        alive: list[Awaitable[Any]] = [client.snapshot(), client.git("diff"), client.restore_snapshot()]
        for action in [*alive, runtime.push_work(row)]:
            await self.attempt(action)
        self.harness.kill(self.spec)
        await runtime.observe([row], timeout=10, concurrency=1)
        dead: list[Awaitable[Any]] = [
            asyncio.to_thread(runtime.unread_journal, row, 0, ""),
            asyncio.to_thread(runtime.resume_token, row),
        ]
        for action in [*dead, runtime.push_work(row)]:
            await self.attempt(action)
        kept = recovery_refs.find_saved_work(
            self.harness.repository, self.spec.session_id, self.launched.worktree_branch
        )
        for read in (recovery_refs.saved_status, recovery_refs.saved_diff):
            read(kept)
        if not await self.attempt(self.launch()):
            self.restore()
            await self.launch()

    async def launch(self) -> None:
        """The next start, as the row knows the session."""
        self.launched = await self.harness.runtime.launch(known(self.spec, self.launched))

    async def remove_orphan(self) -> None:
        """As if no row knew the sprite."""
        runtime = self.harness.runtime
        (orphan,) = await runtime.orphans({self.other[0].execution_id}, [self.harness.config])
        assert orphan.id == sprite_name(self.spec.execution_id)
        assert await runtime.remove_orphan(orphan, [self.harness.config])
        assert list(self.harness.sprites_api.machines) == [sprite_name(self.other[0].execution_id)]

    def delete(self) -> None:
        """The session is deleted, and maintenance comes by later."""
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

    async def play() -> None:
        await sprite.begin()
        for name in [name for name in BROKEN if name not in NOT_ON_THIS_MACHINE][part::6]:
            sprite.tamper(BROKEN[name])
            await sprite.go_through()
            assert sprite.others() == sprite.before, name
            sprite.restore()
        await sprite.remove_orphan()

    asyncio.run(play())
    sprite.delete()
    assert sprite.others() == sprite.before
