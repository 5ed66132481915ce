"""Observations on this machine with the real agentctl (alive, dead, unknown), and how executions are ended."""

from __future__ import annotations

import shutil
import signal
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.machine.git.worktrees import Worktree, nothing_found
from executors_app.machine.process import execution_processes, identity
from executors_app.repositories.workspace_store import execution_storage
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.executions import Launched, LaunchSpec, Observed, WorkspaceState
from tests.executors.launches import agentctl_of, kill, leave_a_marked_process, observe, row
from tests.executors.repositories import run_git
from tests.support import fake_agentctl
from tests.waiting import PATIENCE, eventually


async def test_live_agentctl_is_alive_with_its_status(spec: LaunchSpec, launched: Launched) -> None:
    seen = await observe(row(spec, launched))
    assert (seen.observed, seen.url, seen.pid) == (Observed.ALIVE, launched.url, launched.pid)
    assert seen.report is not None
    assert seen.report["boot_id"] == launched.boot_id


async def test_live_agentctl_unknown_to_its_row_is_found(spec: LaunchSpec, launched: Launched) -> None:
    seen = await observe(row(spec))
    assert (seen.observed, seen.url, seen.pid, seen.state) == (
        Observed.ALIVE,
        launched.url,
        launched.pid,
        launched.state,
    )


async def test_killed_agentctl_is_dead_and_its_worktree_exists(spec: LaunchSpec, launched: Launched) -> None:
    kill(launched)
    seen = await observe(row(spec, launched))
    assert (seen.observed, seen.reason, seen.workspace) == (Observed.DEAD, "process_gone", WorkspaceState.PRESENT)


async def test_killed_agentctl_with_a_deleted_worktree_is_reported(
    spec: LaunchSpec, launched: Launched, repository: Path
) -> None:
    kill(launched)
    shutil.rmtree(launched.worktree_path)
    assert (await observe(row(spec, launched))).workspace is WorkspaceState.REBUILDABLE
    run_git(repository, "worktree", "prune")
    run_git(repository, "branch", "-D", launched.worktree_branch)
    seen = await observe(row(spec, launched))
    reason = nothing_found(Worktree(Path(launched.worktree_path), launched.worktree_branch))
    assert (seen.observed, seen.workspace, seen.workspace_reason) == (Observed.DEAD, WorkspaceState.GONE, reason)


async def test_execution_never_started_is_dead_and_can_be_launched(spec: LaunchSpec) -> None:
    seen = await observe(row(spec))
    assert (seen.observed, seen.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)


async def test_frozen_agentctl_is_unknown_not_dead(spec: LaunchSpec, launched: Launched) -> None:
    who = agentctl_of(launched)
    identity.send_signal(who, signal.SIGSTOP)
    try:
        seen = await observe(row(spec, launched), timeout=0.3)
    finally:
        identity.send_signal(who, signal.SIGCONT)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "timeout")


async def test_live_agentctl_that_rejects_our_token_is_unknown(spec: LaunchSpec, launched: Launched) -> None:
    seen = await observe(row(spec, launched, auth_token="another-token-of-the-row"))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "foreign")


async def test_other_server_at_its_address_is_unknown_not_dead(spec: LaunchSpec, tmp_path: Path) -> None:
    async with fake_agentctl.answering_server(fake_agentctl.http_response(401, b"{}"), tmp_path / "one") as url:
        seen = await observe(row(spec, agentctl_url=url))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "foreign")
    async with fake_agentctl.hanging_server(tmp_path / "two") as url:
        seen = await observe(row(spec, agentctl_url=url), timeout=0.2)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "timeout")


async def test_other_server_at_its_address_does_not_hide_a_death(spec: LaunchSpec, launched: Launched) -> None:
    kill(launched)
    async with fake_agentctl.answering_server(fake_agentctl.http_response(401, b"{}")) as url:
        seen = await observe(row(spec, launched, agentctl_url=url))
    assert (seen.observed, seen.reason) == (Observed.DEAD, "process_gone")


@pytest.mark.parametrize("dead", [False, True])
async def test_row_of_another_host_is_always_unknown(spec: LaunchSpec, launched: Launched, dead: bool) -> None:
    if dead:
        kill(launched)
    facts = row(spec, launched, host_id="elsewhere")
    seen = await observe(facts)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "other_host")
    assert await RUNTIME.end(facts) is False
    assert identity.is_alive(agentctl_of(launched)) is not dead


async def test_row_from_before_the_last_boot_is_dead(spec: LaunchSpec, launched: Launched) -> None:
    before = {"process": agentctl_of(launched).to_json() | {"boot_id": "an earlier boot of the kernel"}}
    facts = row(spec, launched, host_id="before the boot", state=before)
    assert (await observe(facts)).reason == "other_host", "another process holds the lock of the state directory"
    kill(launched)
    assert (await observe(facts)).observed is Observed.DEAD
    stranger = replace(facts, auth_token="not the token of this state directory")
    assert (await observe(stranger)).reason == "other_host"


async def test_bad_row_does_not_affect_others(spec: LaunchSpec, launched: Launched) -> None:
    bad = [
        row(spec, id=str(uuid.uuid4()), agentctl_url=url, state=state, repository_path="/nonexistent")
        for url, state in (
            ("http://127.0.0.1:x", {}),
            ("\0", {"process": 3}),
            (fake_agentctl.refusing_url(), {"process": {}}),
        )
    ]
    seen = await RUNTIME.observe([*bad, row(spec, launched)], timeout=PATIENCE, concurrency=2)
    assert seen[spec.execution_id].observed is Observed.ALIVE
    assert [seen[one.id].observed for one in bad] == [Observed.DEAD] * 3


async def test_damaged_state_directory_does_not_affect_others(spec: LaunchSpec, launched: Launched) -> None:
    bad = [row(spec, id=str(uuid.uuid4()), agentctl_url=fake_agentctl.refusing_url()) for _ in range(3)]
    a_directory, not_text, a_loop = (execution_storage().state_directory_of(each.id).token_file for each in bad)
    a_directory.mkdir(parents=True)
    not_text.parent.mkdir()
    not_text.write_bytes(b"\xff")
    a_loop.parent.mkdir()
    a_loop.symlink_to(a_loop)
    seen = await RUNTIME.observe([*bad, row(spec, launched)], timeout=PATIENCE, concurrency=2)
    assert seen[spec.execution_id].observed is Observed.ALIVE
    assert [seen[each.id].observed for each in bad] == [Observed.DEAD, Observed.DEAD, Observed.UNKNOWN]


async def test_silent_agentctl_is_ended_with_all_its_processes(
    spec: LaunchSpec, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors_app.machine.local_machine.STOP_GRACE", 0.2)
    child = leave_a_marked_process(spec.execution_id)
    identity.send_signal(agentctl_of(launched), signal.SIGSTOP)
    assert await RUNTIME.end(row(spec, launched)) is True
    assert child.wait(PATIENCE) == -signal.SIGKILL
    assert not identity.is_alive(agentctl_of(launched))
    assert await RUNTIME.end(row(spec, launched)) is True


async def test_leftovers_of_a_dead_agentctl_are_counted_and_ended(spec: LaunchSpec, launched: Launched) -> None:
    kill(launched)
    eventually(
        lambda: not execution_processes.find_processes(spec.execution_id).others, describe="the guards have ended, too"
    )
    child = leave_a_marked_process(spec.execution_id)
    other = leave_a_marked_process(str(uuid.uuid4()))
    try:
        eventually(
            lambda: execution_processes.find_processes(spec.execution_id).others, describe="the marked child runs"
        )
        assert (await observe(row(spec, launched))).leftovers == 1
        assert await RUNTIME.end_leftovers(row(spec, launched)) == 1
        assert child.wait(PATIENCE) == -signal.SIGKILL
        assert other.poll() is None, "the other process is not of this execution"
        assert await RUNTIME.end_leftovers(row(spec, launched)) == 0
    finally:
        other.kill()
        other.wait()


async def test_nothing_is_a_leftover_while_its_agentctl_lives(spec: LaunchSpec, launched: Launched) -> None:
    child = leave_a_marked_process(spec.execution_id)
    try:
        eventually(
            lambda: execution_processes.find_processes(spec.execution_id).others, describe="the marked child runs"
        )
        assert await RUNTIME.end_leftovers(row(spec, launched)) == 0
        assert await RUNTIME.end_leftovers(row(spec)) == 0
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
