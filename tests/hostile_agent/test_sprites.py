"""A sprite is the agent's whole machine: what it sends reaches its own archive and refs, and nothing else.

The stand-in's sprites are directories of this machine, so commands may run in there; none may run as the control
plane's git, which is known by its environment.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from executors_app import workspace_store
from executors_app.errors import ExecutorError
from tests.executors.places import client_of, known, row_of, seen, spec_for
from tests.executors.repositories import run_git
from tests.hostile_agent.tampering import MILD, settings_text
from tests.repositories.attacks import Trap
from tests.sprites.conftest import place, repository, stand_in  # noqa: F401 - fixtures
from tests.sprites.place import SpritesPlace

MARK = "HOME=/nonexistent"
"""Of the environment of the control plane's git."""


@pytest.mark.parametrize("settings_too", [False, True])
async def test_tampered_sprite_reaches_no_other_session(
    place: SpritesPlace,  # noqa: F811
    tmp_path: Path,
    settings_too: bool,
) -> None:
    trap = Trap(tmp_path / "trap").lay()
    trap.script.write_text(f"#!/bin/sh\nenv >> '{trap.canary}'\ncat\n")
    spec, other = spec_for(place), spec_for(place)
    theirs, launched = await place.runtime.launch(other), await place.runtime.launch(spec)
    (seen(place, theirs) / "theirs").write_text("theirs\n")
    await client_of(other, theirs).snapshot()
    await place.runtime.push_work(row_of(place, other, theirs))
    await client_of(spec, launched).snapshot()
    before = {
        line for line in run_git(place.repository, "show-ref").splitlines() if launched.worktree_branch not in line
    }
    archived = workspace_store.archive_of(other.session_id).tips()
    tree = seen(place, launched)
    values = {
        "W": tree, "R": tree.parent.parent / "repository.git", "OWN": spec.session_id, "OTHER": other.session_id,
        "RECORD": tree.parent.parent / "repository.git/worktrees" / spec.session_id, "HOST": trap.outside,
        "THEIRS": theirs.worktree_branch, "DATA": tmp_path / "data", "STATE": "/nonexistent", "TEAM": place.repository,
    }  # fmt: skip
    left_out = {"alternates to host directories", "links to the host in the tree", "two thousand refs"}
    for name in MILD.keys() - left_out:
        environment = {**os.environ, **{name: str(value) for name, value in values.items()}}
        words = ["sh", "-c", MILD[name], "sh", str(trap.script)]
        await asyncio.to_thread(subprocess.run, words, cwd=tree, env=environment, check=False)
    if settings_too:
        with (tree.parent.parent / "repository.git/config").open("a") as config:
            config.write(settings_text(trap.root, "command"))
    row = row_of(place, spec, launched)
    for _ in range(2):
        for action in (
            client_of(spec, launched).snapshot(),
            place.runtime.push_work(row),
            place.runtime.observe([row], timeout=10, concurrency=1),
        ):
            with suppress(ExecutorError):
                await action
        place.kill(spec)
        try:
            launched = await place.runtime.launch(known(spec, launched))
        except ExecutorError:
            break
    own = (launched.worktree_branch, spec.session_id)
    after = {
        line for line in run_git(place.repository, "show-ref").splitlines() if not any(name in line for name in own)
    }
    assert after == before
    assert workspace_store.archive_of(other.session_id).tips() == archived
    assert not trap.canary.exists() or MARK not in trap.canary.read_text()
