"""The workspace of a session on this machine survives the loss of its agentctl and its directory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.machine.process import identity
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import Launched, LaunchSpec, Observed, WorkspaceState
from tests.executors.launches import agentctl_of, client_of, kill, observe, row
from tests.executors.repositories import run_git
from tests.waiting import eventually_async
from tests.workspace.trees import make_six, state_of


async def _end_normally(spec: LaunchSpec, launched: Launched) -> None:
    assert await RUNTIME.end(row(spec, launched))


async def _kill_after_a_snapshot(spec: LaunchSpec, launched: Launched) -> None:
    taken = await client_of(spec, launched).snapshot()
    assert taken["dirty"]
    kill(launched)


@pytest.mark.parametrize("end", [_end_normally, _kill_after_a_snapshot])
@pytest.mark.parametrize("forgotten", [True, False], ids=["removed by git", "removed by hand"])
async def test_removed_worktree_returns_with_uncommitted_work(
    spec: LaunchSpec, launched: Launched, repository: Path, end: object, forgotten: bool
) -> None:
    root = Path(launched.worktree_path)
    make_six(root)
    before = state_of(root)
    assert len(before[0].splitlines()) == 6
    await end(spec, launched)  # type: ignore[operator]
    if forgotten:
        run_git(repository, "worktree", "remove", "--force", str(root))
    else:
        shutil.rmtree(root)
    seen = await observe(row(spec, launched))
    assert (seen.observed, seen.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)

    again = await RUNTIME.launch(
        replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)
    )

    assert state_of(root) == before
    assert (await client_of(spec, again).git("status"))["clean"] is False


async def test_shell_ends_with_a_killed_agentctl(spec: LaunchSpec, launched: Launched, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with client_of(spec, launched).shell("main", 80, 24) as shell:
        job = f"setsid nohup sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600' &\n"
        await shell.type(job.encode())
        await eventually_async(pid_file.exists)
    left = identity.identify(int(pid_file.read_text()))
    assert left
    assert identity.is_alive(left)

    kill(launched)
    await RUNTIME.end_leftovers(row(spec, launched))

    assert not identity.is_alive(left)
    assert not identity.is_alive(agentctl_of(launched))
