"""The contract of runtimes whose sessions may share a worktree: it is created once and rebuilt once.

``harness`` is a fixture, as for ``RuntimeContract``. The host is the session that the worktree is named after; a guest
is another session that works in it.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from dataclasses import replace
from functools import partial

import pytest

from executors_app.machine.git import recovery_snapshots
from executors_app.wire.errors import WorkspaceGone
from executors_app.wire.executions import LaunchSpec, Observed, WorkspaceState
from tests.executors.harness import (
    RuntimeHarness,
    client_of,
    forget,
    git_in,
    known,
    observe_one,
    row_of,
    seen,
    spec_for,
)
from tests.executors.repositories import run_git
from tests.workspace.trees import make_six, state_of


def guest_of(host: LaunchSpec) -> LaunchSpec:
    """Return the spec of a guest of this host."""
    return replace(host, execution_id=str(uuid.uuid4()), session_id=str(uuid.uuid4()), worktree_id=host.session_id)


class SharedWorktreesContract:
    """The contract's tests; pytest collects the subclasses, not this class."""

    async def test_guest_session_shares_worktree_with_its_own_agentctl(self, harness: RuntimeHarness) -> None:
        host = spec_for(harness)
        guest, launched = guest_of(host), await harness.runtime.launch(host)
        beside = await harness.runtime.launch(guest)
        assert (beside.worktree_id, beside.worktree_path, beside.worktree_branch, beside.workspace_path) == (
            host.session_id,
            launched.worktree_path,
            launched.worktree_branch,
            launched.workspace_path,
        )
        assert beside.boot_id != launched.boot_id
        assert [path.name for path in seen(harness, launched).parent.iterdir() if path.is_dir()] == [host.session_id]
        assert run_git(harness.repository, "branch", "--list", "kandev/*").split()[-1] == launched.worktree_branch
        assert (await client_of(guest, beside).status())["session_id"] == guest.session_id
        (seen(harness, launched) / "from the host").write_text("seen\n")
        read = await client_of(guest, beside).read_file("from the host")
        assert read["content"] == "seen\n"

    async def test_concurrent_launches_make_one_worktree(self, harness: RuntimeHarness) -> None:
        host = spec_for(harness)
        theirs, ours = await asyncio.gather(harness.runtime.launch(guest_of(host)), harness.runtime.launch(host))
        assert theirs.worktree_path == ours.worktree_path
        assert [path.name for path in seen(harness, ours).parent.iterdir() if path.is_dir()] == [host.session_id]

    @pytest.mark.parametrize("first", ["host", "guest"])
    async def test_lost_worktree_returns_with_uncommitted_work_of_guest(
        self, harness: RuntimeHarness, first: str
    ) -> None:
        host = spec_for(harness)
        guest, launched = guest_of(host), await harness.runtime.launch(host)
        beside = await harness.runtime.launch(guest)
        root = seen(harness, launched)
        make_six(root, partial(git_in, harness, launched))
        before = state_of(root, partial(git_in, harness, launched))
        taken = await client_of(guest, beside).snapshot()
        assert taken["ref"] == recovery_snapshots.session_recovery_ref(host.session_id)
        for one in (host, guest):
            harness.kill(one)
        shutil.rmtree(root)
        for row in (row_of(harness, host, launched), row_of(harness, guest, beside, worktree_id=guest.worktree_id)):
            found = await observe_one(harness, row)
            assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)

        order = [known(host, launched), known(guest, beside)]
        again = await harness.runtime.launch(order[first == "guest"])
        assert state_of(root, partial(git_in, harness, again)) == before
        (root / "made after that").write_text("new\n")
        later = await harness.runtime.launch(order[first == "host"])

        assert again.worktree_path == later.worktree_path == launched.worktree_path
        assert (root / "made after that").read_text() == "new\n"
        assert git_in(harness, later, "for-each-ref", "--format=%(refname)", "refs/kandev/recovery/") == taken["ref"]

    async def test_end_of_a_guest_leaves_the_host_and_the_worktree(self, harness: RuntimeHarness) -> None:
        host = spec_for(harness)
        guest, launched = guest_of(host), await harness.runtime.launch(host)
        beside, root = await harness.runtime.launch(guest), seen(harness, launched)
        (root / "from the guest").write_text("kept\n")
        assert await harness.runtime.end(row_of(harness, guest, beside, worktree_id=guest.worktree_id))
        assert (root / "from the guest").read_text() == "kept\n"
        assert (await client_of(host, launched).status())["session_id"] == host.session_id

    async def test_guest_session_never_replaces_a_lost_worktree(self, harness: RuntimeHarness) -> None:
        host = spec_for(harness)
        launched = await harness.runtime.launch(host)
        harness.kill(host)
        shutil.rmtree(seen(harness, launched))
        forget(harness, launched, branch=True)
        with pytest.raises(WorkspaceGone, match=r"and its branch .* was not found"):
            await harness.runtime.launch(known(guest_of(host), launched))
