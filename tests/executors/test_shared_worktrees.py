"""Sessions of this machine that work in one worktree: it is made once, kept under its owner's name and rebuilt once."""

from __future__ import annotations

import asyncio
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.agentctl import identity, recovery_ref
from executors_app.agentctl.places import local_processes
from executors_app.agentctl.workspace.snapshots import take
from executors_app.client import AgentctlClient
from executors_app.domain import Launched, LaunchSpec, Observed, WorkspaceState
from executors_app.errors import WorkspaceGone
from executors_app.runtimes.local_standalone import RUNTIME
from tests.executors.launches import TOKEN, kill, observe, row
from tests.executors.repositories import run_git
from tests.workspace.trees import SESSION, git_of, keep, make_six, state_of


@pytest.fixture
def guest(spec: LaunchSpec) -> Iterator[LaunchSpec]:
    """The launch of a session that works in the worktree of ``spec``'s."""
    wanted = replace(spec, execution_id=str(uuid.uuid4()), session_id=str(uuid.uuid4()), worktree_id=spec.session_id)
    yield wanted
    processes = local_processes.look_at(wanted.execution_id)
    identity.end_all([*processes.agentctl, *processes.others], 10)


def client(spec: LaunchSpec, launched: Launched) -> AgentctlClient:
    return AgentctlClient(launched.url, TOKEN, spec.execution_id)


def known(spec: LaunchSpec, launched: Launched) -> LaunchSpec:
    return replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)


def guests_row(guest: LaunchSpec, launched: Launched) -> object:
    return row(guest, launched, worktree_id=guest.worktree_id)


async def test_a_guest_works_in_its_hosts_worktree_with_an_agentctl_of_its_own(
    spec: LaunchSpec, guest: LaunchSpec, launched: Launched, data_directory: Path, repository: Path
) -> None:
    beside = await RUNTIME.launch(guest)
    assert (beside.worktree_id, beside.worktree_path, beside.worktree_branch, beside.workspace_path) == (
        spec.session_id,
        launched.worktree_path,
        launched.worktree_branch,
        launched.workspace_path,
    )
    assert beside.pid != launched.pid
    states = {path.name for path in (data_directory / "agentctl").iterdir()}
    assert states == {spec.execution_id, guest.execution_id}
    assert [path.name for path in (data_directory / "worktrees").iterdir() if path.is_dir()] == [spec.session_id]
    assert run_git(repository, "branch", "--list", "kandev/*").split()[-1] == launched.worktree_branch
    assert (await client(guest, beside).status())["session_id"] == guest.session_id


async def test_whoever_comes_first_makes_the_worktree_and_both_at_once_make_one(
    spec: LaunchSpec, guest: LaunchSpec, data_directory: Path
) -> None:
    theirs, ours = await asyncio.gather(RUNTIME.launch(guest), RUNTIME.launch(spec))
    assert theirs.worktree_path == ours.worktree_path
    assert [path.name for path in (data_directory / "worktrees").iterdir() if path.is_dir()] == [spec.session_id]


@pytest.mark.parametrize("first", ["host", "guest"])
async def test_a_lost_worktree_comes_back_once_with_what_the_guest_had_not_committed(
    spec: LaunchSpec, guest: LaunchSpec, launched: Launched, repository: Path, first: str
) -> None:
    beside = await RUNTIME.launch(guest)
    root = Path(launched.worktree_path)
    make_six(root)
    before = state_of(root)
    taken = await client(guest, beside).snapshot()
    assert taken["ref"] == recovery_ref.ref_of(spec.session_id)
    for one in (beside, launched):
        kill(one)
    shutil.rmtree(root)
    for facts in (row(spec, launched), guests_row(guest, beside)):
        seen = await observe(facts)  # type: ignore[arg-type]
        assert (seen.observed, seen.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)

    order = [known(spec, launched), known(guest, beside)]
    again = await RUNTIME.launch(order[first == "guest"])
    assert state_of(root) == before
    (root / "made after that").write_text("new\n")
    later = await RUNTIME.launch(order[first == "host"])

    assert again.worktree_path == later.worktree_path == str(root)
    assert (root / "made after that").read_text() == "new\n"
    assert run_git(repository, "for-each-ref", "--format=%(refname)", "refs/kandev/") == taken["ref"]


async def test_the_end_of_a_guest_leaves_its_host_and_the_worktree(
    spec: LaunchSpec, guest: LaunchSpec, launched: Launched
) -> None:
    beside = await RUNTIME.launch(guest)
    root = Path(launched.worktree_path)
    (root / "from the guest").write_text("kept\n")
    assert await RUNTIME.end(guests_row(guest, beside))  # type: ignore[arg-type]
    assert (root / "from the guest").read_text() == "kept\n"
    assert (await client(spec, launched).status())["session_id"] == spec.session_id


async def test_a_guest_that_knows_the_worktree_makes_no_new_one_in_the_place_of_a_lost_one(
    spec: LaunchSpec, guest: LaunchSpec, launched: Launched, repository: Path
) -> None:
    kill(launched)
    run_git(repository, "worktree", "remove", "--force", launched.worktree_path)
    run_git(repository, "branch", "-D", launched.worktree_branch)
    with pytest.raises(WorkspaceGone, match="and its branch"):
        await RUNTIME.launch(known(guest, launched))


def test_two_who_keep_one_worktree_at_once_both_have_it_kept(repository: Path, tmp_path: Path) -> None:
    """Each agentctl has a copy of the index of its own; the ref is moved from what it was seen at."""
    (repository / "new").write_text("0\n")
    keep(repository)
    begin = threading.Barrier(2)

    def keep_often(name: str) -> set[str]:
        kept = set()
        for number in range(10):
            (repository / f"{name}").write_text(f"{number}\n")
            begin.wait(30)
            kept.add(take(git_of(repository), SESSION, tmp_path / f"{name}.index", "turn_end").commit)
        return kept

    with ThreadPoolExecutor(2) as both:
        first, second = both.map(keep_often, ["one", "two"])
    assert first
    assert second
    assert keep(repository).dirty
