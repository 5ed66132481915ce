"""The runtime on this machine with the real agentctl: it is started, lost and found again, and leaves its state."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine import launch, storage
from executors_app.machine.process import execution_processes, identity
from executors_app.machine.storage import StateDirectory, state_directory
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire.errors import LaunchFailed, RepositoryUnusable, WorkspaceGone
from executors_app.wire.executions import Launched, LaunchSpec
from tests.executors.launches import TOKEN, agentctl_of, client_of, kill, observe, only_agentctl, row
from tests.services import ROOT
from tests.waiting import PATIENCE


async def test_launch_returns_a_live_agentctl_in_a_worktree(spec: LaunchSpec, launched: Launched) -> None:
    status = await client_of(spec, launched).status()
    assert status["boot_id"] == launched.boot_id
    assert status["session_id"] == spec.session_id
    assert (Path(launched.workspace_path) / "README").exists()
    assert not launched.found
    assert launched.pid is not None
    assert os.getsid(launched.pid) == launched.pid, "agentctl leads its own session"


async def test_its_directories_are_private(launched: Launched, directory: StateDirectory) -> None:
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.token_file.stat().st_mode & 0o777 == 0o600
    for file in directory.path.rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file


async def test_agentctl_inherits_none_of_our_secrets(
    spec: LaunchSpec, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KANDEV_SECRET_KEY", "top-secret-value")
    monkeypatch.setenv("DATABASE_URL", "top-secret-value")
    launched = await RUNTIME.launch(spec)
    assert launched.pid is not None
    seen = b"\0".join(identity.read_environment(launched.pid))
    assert b"top-secret-value" not in seen
    assert TOKEN.encode() not in seen
    assert TOKEN.encode() not in Path(f"/proc/{launched.pid}/cmdline").read_bytes()


async def test_repeated_launch_finds_the_live_agentctl(spec: LaunchSpec, launched: Launched) -> None:
    again = await RUNTIME.launch(spec)
    assert again == replace(launched, found=True)


async def test_agentctl_is_found_after_its_starter_was_killed(spec: LaunchSpec, data_directory: Path) -> None:
    starter = (
        "import os, sys; from pathlib import Path; from executors_app.machine import launch;"
        "from executors_app.wire.executions import LaunchSpec;"
        "from executors_app.machine.storage import ExecutionStorage;"
        "data, execution, session, repository, token = sys.argv[1:];"
        "storage, spec = ExecutionStorage(Path(data)), LaunchSpec(execution, session, '', repository, '', token);"
        "path, places = storage.write_seed(spec).path, storage.state_directory_of(execution);"
        "launch._find_or_start(places, spec, path, token, {}); os.kill(os.getpid(), 9)"
    )
    words = [str(data_directory), spec.execution_id, spec.session_id, spec.repository_path, TOKEN]
    argv = [sys.executable, "-c", starter, *words]
    starting = await asyncio.create_subprocess_exec(*argv, cwd=ROOT)
    assert await starting.wait() == -signal.SIGKILL
    first = only_agentctl(spec.execution_id)

    launched = await RUNTIME.launch(spec)

    assert launched.found
    assert agentctl_of(launched) == first


async def test_concurrent_launches_start_one_agentctl(spec: LaunchSpec) -> None:
    launches = await asyncio.gather(*(RUNTIME.launch(spec) for _ in range(3)))
    assert len({launched.boot_id for launched in launches}) == 1
    assert agentctl_of(launches[0]) == only_agentctl(spec.execution_id)


async def test_cancelled_launch_is_over_when_nothing_can_start_any_more(
    spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_start = threading.Event(), threading.Event()
    start = launch._start

    def start_late(*words: Any) -> Any:
        begun.set()
        assert may_start.wait(PATIENCE)
        return start(*words)

    monkeypatch.setattr(launch, "_start", start_late)
    launching = asyncio.create_task(RUNTIME.launch(spec))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    launching.cancel()
    with monkeypatch.context() as impatient:
        impatient.setattr(storage, "_LOCK_TIMEOUT", 0)
        assert not await RUNTIME.end(row(spec)), "what is being started cannot be found yet"
    assert not launching.done()

    may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert only_agentctl(spec.execution_id)
    assert await RUNTIME.end(row(spec))
    assert execution_processes.find_processes(spec.execution_id) == execution_processes.ExecutionProcesses()


async def test_dead_agentctl_is_restarted_in_the_same_worktree(spec: LaunchSpec, launched: Launched) -> None:
    (Path(launched.worktree_path) / "mine").write_text("uncommitted\n")
    kill(launched)
    known = replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)
    again = await RUNTIME.launch(known)
    assert again.boot_id != launched.boot_id
    assert again.worktree_path == launched.worktree_path
    assert (Path(again.worktree_path) / "mine").read_text() == "uncommitted\n"


async def test_agentctl_that_cannot_start_is_reported_with_its_log(spec: LaunchSpec) -> None:
    with pytest.raises(LaunchFailed, match="token needs at least"):
        await RUNTIME.launch(replace(spec, auth_token="short"))


async def test_launch_without_a_repository_fails_permanently(spec: LaunchSpec) -> None:
    with pytest.raises(RepositoryUnusable):
        await RUNTIME.launch(replace(spec, repository_path=""))
    assert execution_processes.find_processes(spec.execution_id) == execution_processes.ExecutionProcesses()


async def test_launch_never_replaces_a_lost_worktree_by_an_empty_one(spec: LaunchSpec, tmp_path: Path) -> None:
    known = replace(spec, worktree_path=str(tmp_path / "lost"), worktree_branch="kandev/lost")
    with pytest.raises(WorkspaceGone, match="its branch kandev/lost was not found"):
        await RUNTIME.launch(known)


async def test_dead_agentctl_leaves_its_token_and_journal(
    spec: LaunchSpec, launched: Launched, data_directory: Path, tmp_path: Path
) -> None:
    client = client_of(spec, launched)
    script = ROOT / "executors_app" / "demo_agent"
    start = {
        "launch_id": "launch-1",
        "argv": [sys.executable, "-I", str(script)],
        "env": {"KANDEV_DEMO_AGENT_HOME": str(tmp_path / "agent")},
        "cwd": launched.workspace_path,
        "driver": "acp",
        "strategy": "fresh",
        "mcp_servers": [],
        "permission_mode": "ask",
    }
    started = await client.start_agent(start, 30)
    live = (await client.status())["journal"]
    assert (await observe(row(spec, launched))).leftovers == 0
    kill(launched)

    facts = row(spec, launched)
    assert RUNTIME.resume_token(facts) == started["resume_token"]
    lines = RUNTIME.unread_journal(facts, 0, "")
    assert [line["seq"] for line in lines] == list(range(1, live["last_seq"] + 1))
    assert "agent.started" in {line["kind"] for line in lines}
    assert RUNTIME.unread_journal(facts, live["last_seq"], live["epoch"]) == []


async def test_missing_state_directory_has_no_token_and_no_journal(spec: LaunchSpec) -> None:
    assert RUNTIME.resume_token(row(spec)) is None
    assert RUNTIME.unread_journal(row(spec), 0, "e") == []


def test_incomplete_ready_file_is_ignored(data_directory: Path) -> None:
    directory = state_directory(data_directory, "e")
    directory.create()
    for text in ("", "{", "[]", '{"url": "http://127.0.0.1:1"}', '{"url": "x", "pid": null}'):
        directory.ready_file.write_text(text)
        assert launch.read_ready_file(directory) is None, text
