"""The runtime contract in Pods.

Only a Pod can look at a volume, so what happened to a workspace shows when its session starts again.
"""

from __future__ import annotations

import shutil

import pytest

from executors_app.wire.errors import WorkspaceGone
from executors_app.wire.executions import Observed
from tests.executors.contract import RuntimeContract
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


class PodContract(RuntimeContract):
    """The contract's tests; pytest collects the subclasses, not this class."""

    async def test_lost_worktree_is_reported_and_never_replaced_by_an_empty_one(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        harness.kill(spec)
        shutil.rmtree(seen(harness, launched))
        forget(harness, launched, branch=True)
        found = await observe_one(harness, row_of(harness, spec, launched))
        assert found.observed is Observed.DEAD
        with pytest.raises(WorkspaceGone):
            await harness.runtime.launch(known(spec, launched))

    async def test_deleted_worktree_returns_with_its_uncommitted_work(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        worktree = seen(harness, launched)
        for name in ("README", "staged", "untracked"):
            (worktree / name).write_text(f"work in {name}\n")
        git_in(harness, launched, "add", "staged")
        await client_of(spec, launched).snapshot()
        harness.kill(spec)
        shutil.rmtree(worktree)
        forget(harness, launched, branch=False)
        again = await harness.runtime.launch(known(spec, launched))
        assert git_in(harness, again, "status", "--porcelain").split("\n") == [
            *("M README", "A  staged"),
            "?? untracked",
        ]
        assert (worktree / "untracked").read_text() == "work in untracked\n"
