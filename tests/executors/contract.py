"""The contract of every runtime; each runtime's test module subclasses it.

``harness`` is a fixture: the runtime, with ways to disturb what it has started.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from executors_app.runtimes import read_left_state
from executors_app.wire.errors import AgentctlForeign, RepositoryUnusable, WorkspaceGone
from executors_app.wire.executions import Observation, Observed, WorkspaceState
from tests.executors.harness import (
    RuntimeHarness,
    client_of,
    config_of,
    ended_job,
    forget,
    git_in,
    known,
    observe_one,
    row_of,
    seen,
    spec_for,
    start_agent,
)
from tests.executors.repositories import run_git
from tests.waiting import PATIENCE, eventually_async


class RuntimeContract:
    """The contract's tests; pytest collects the subclasses, not this class."""

    bad_config: ClassVar[dict[str, Any]] = {"no such setting": 1}
    observes_workspaces: ClassVar[bool] = True
    """Whether an observation looks at the workspace; with False, a launch is the first to see that it is gone."""

    def assert_observed_workspace(self, found: Observation, state: WorkspaceState, reason: str = "") -> None:
        """Assert what the observation of a dead execution says of its workspace."""
        if self.observes_workspaces:
            assert found.workspace is state
            assert reason in found.workspace_reason

    async def test_launch_starts_agentctl_in_a_worktree_of_the_repository(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        found = await observe_one(harness, row_of(harness, spec, launched))
        assert (found.observed, found.url, launched.found) == (Observed.ALIVE, launched.url, False)
        assert found.report is not None
        assert found.report["boot_id"] == launched.boot_id
        assert found.report["workspace"]["exists"]
        assert found.report["workspace"]["branch"] == launched.worktree_branch
        assert run_git(harness.repository, "rev-parse", launched.worktree_branch)

    async def test_repeated_launch_finds_the_live_agentctl(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        assert await harness.runtime.launch(spec) == replace(launched, found=True)

    async def test_built_in_agent_starts_by_its_name(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        env = dict(word.split("=", 1) for word in harness.demo_agent if word.startswith("KANDEV_DEMO_AGENT_HOME="))
        answer = await start_agent(harness, spec, launched, "first", argv=["kandev-demo-agent"], env=env)
        assert answer["outcome"] == "created"

    async def test_concurrent_launches_start_one_agentctl(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launches = await asyncio.gather(*(harness.runtime.launch(spec) for _ in range(3)))
        assert len({launched.boot_id for launched in launches}) == 1

    async def test_live_agentctl_unknown_to_its_row_is_found(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        found = await observe_one(harness, row_of(harness, spec))
        assert (found.observed, found.url) == (Observed.ALIVE, launched.url)

    async def test_killed_agentctl_is_dead_and_restarts_on_its_worktree(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        (seen(harness, launched) / "mine").write_text("uncommitted\n")
        harness.kill(spec)
        found = await observe_one(harness, row_of(harness, spec, launched))
        assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.PRESENT)
        assert found.reason
        again = await harness.runtime.launch(known(spec, launched))
        assert again.boot_id != launched.boot_id
        assert again.worktree_path == launched.worktree_path
        assert (seen(harness, again) / "mine").read_text() == "uncommitted\n"

    async def test_each_launch_has_its_own_token(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        first = await harness.runtime.launch(spec)
        harness.kill(spec)
        again = await harness.runtime.launch(known(spec, first))
        assert first.state["launch"] != again.state["launch"]
        with_the_old_one = replace(again, state={**again.state, "launch": first.state["launch"]})
        with pytest.raises(AgentctlForeign):
            await client_of(spec, with_the_old_one).status()
        assert (await client_of(spec, again).status())["boot_id"] == again.boot_id

    async def test_script_runs_once_whichever_process_is_killed(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        client = client_of(spec, launched)
        short, long = {"script": "pwd; echo ran >>times; exit 3"}, {"script": "echo ran >>others; sleep 3600"}
        await client.start_job("run-1/build#2", short)
        ended = await ended_job(client, "run-1/build#2")
        assert (ended["state"], ended["exit_code"]) == ("ended", 3)
        assert ended["stdout"] == f"{launched.worktree_path}\n"
        await client.start_job("run-1/other", long)
        others = seen(harness, launched) / "others"
        assert await eventually_async(others.exists, 60)

        harness.kill(spec)
        await observe_one(harness, row_of(harness, spec, launched))
        client = client_of(spec, await harness.runtime.launch(known(spec, launched)))

        assert await client.start_job("run-1/build#2", short) == ended
        other = await client.start_job("run-1/other", long)
        assert other["state"] in ("ended", "lost")
        assert other["error"] in ("agentctl_ended", "lost")
        for file in ("times", "others"):
            assert (seen(harness, launched) / file).read_text() == "ran\n"

    async def test_execution_never_started_is_dead_and_can_be_launched(self, harness: RuntimeHarness) -> None:
        found = await observe_one(harness, row_of(harness, spec_for(harness)))
        assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)

    async def test_silent_agentctl_is_unknown_not_dead(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        with harness.silence(spec):
            found = await observe_one(harness, row_of(harness, spec, launched), timeout=1.0)
        assert (found.observed, found.reason) == (Observed.UNKNOWN, "timeout")

    async def test_live_agentctl_that_rejects_our_token_is_unknown(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        found = await observe_one(harness, row_of(harness, spec, launched, auth_token="another-token-of-the-row"))
        assert (found.observed, found.reason) == (Observed.UNKNOWN, "foreign")

    async def test_lost_worktree_is_reported_and_never_replaced_by_an_empty_one(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        harness.kill(spec)
        shutil.rmtree(seen(harness, launched))
        forget(harness, launched, branch=True)
        found = await observe_one(harness, row_of(harness, spec, launched))
        assert found.observed is Observed.DEAD
        self.assert_observed_workspace(found, WorkspaceState.GONE, launched.worktree_branch)
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
        found = await observe_one(harness, row_of(harness, spec, launched))
        self.assert_observed_workspace(found, WorkspaceState.REBUILDABLE)
        again = await harness.runtime.launch(known(spec, launched))
        assert git_in(harness, again, "status", "--porcelain").split("\n") == [
            *("M README", "A  staged"),
            "?? untracked",
        ]
        assert (worktree / "untracked").read_text() == "work in untracked\n"

    async def test_launch_without_a_repository_fails_permanently(self, harness: RuntimeHarness) -> None:
        with pytest.raises(RepositoryUnusable):
            await harness.runtime.launch(replace(spec_for(harness), repository_path=""))

    async def test_bad_row_does_not_affect_others(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        bad = [
            row_of(harness, spec_for(harness), agentctl_url=url, state=state, repository_path="/nonexistent")
            for url, state in (("http://127.0.0.1:x", {}), ("\0", {"process": 3}), ("", {"process": {}}))
        ]
        found = await harness.runtime.observe([*bad, row_of(harness, spec, launched)], timeout=PATIENCE, concurrency=2)
        assert found[spec.execution_id].observed is Observed.ALIVE
        assert all(found[one.id].observed is not Observed.ALIVE for one in bad)

    async def test_ended_execution_stays_dead_and_can_be_launched_again(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        facts = row_of(harness, spec, launched)
        assert await harness.runtime.end(facts) is True
        assert (await observe_one(harness, facts)).observed is Observed.DEAD
        assert await harness.runtime.end(facts) is True
        again = await harness.runtime.launch(known(spec, launched))
        assert again.boot_id != launched.boot_id

    async def test_nothing_is_a_leftover_while_agentctl_lives(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        assert await harness.runtime.end_leftovers(row_of(harness, spec, launched)) == 0
        assert (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.ALIVE

    async def test_missing_state_directory_has_no_token_and_no_journal(self, harness: RuntimeHarness) -> None:
        facts = row_of(harness, spec_for(harness))
        assert harness.runtime.resume_token(facts) is None
        assert list(harness.runtime.unread_journal(facts, 0, "e")) == []

    async def test_availability_check_passes_for_an_available_runtime(self, harness: RuntimeHarness) -> None:
        await harness.runtime.check_availability(config_of(harness))

    def test_invalid_settings_are_rejected_in_one_sentence(self, harness: RuntimeHarness) -> None:
        with pytest.raises(ValueError, match=r".+\."):
            harness.runtime.check_config(self.bad_config)

    async def test_restart_drill_new_control_plane_finds_the_same_agent(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        await start_agent(harness, spec, launched, "first")
        before = await client_of(spec, launched).status()
        found = await type(harness.runtime)().observe(
            [row_of(harness, spec, launched)], timeout=PATIENCE, concurrency=5
        )
        report = found[spec.execution_id].report
        assert report is not None
        assert report["agent"] == before["agent"]
        assert report["journal"] == before["journal"]

    async def test_restart_drill_reads_left_journal_and_resumes_conversation(self, harness: RuntimeHarness) -> None:
        spec = spec_for(harness)
        launched = await harness.runtime.launch(spec)
        started = await start_agent(harness, spec, launched, "first")
        live = (await client_of(spec, launched).status())["journal"]
        harness.kill(spec)
        later, facts = type(harness.runtime)(), row_of(harness, spec, launched)

        left = await asyncio.to_thread(read_left_state, later, facts, 0, "")
        assert [line["seq"] for line in left.lines] == list(range(1, live["last_seq"] + 1))
        assert left.resume_token == started["resume_token"]
        assert list(await asyncio.to_thread(later.unread_journal, facts, live["last_seq"], live["epoch"])) == []

        assert await later.end_leftovers(facts) == 0
        again = await later.launch(known(spec, launched))
        outcome = await start_agent(harness, spec, again, "second", left.resume_token)
        assert outcome["outcome"] in ("loaded", "resumed")
        assert (await client_of(spec, again).status())["journal"]["epoch"] == live["epoch"]
