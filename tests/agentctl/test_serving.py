"""agentctl as a program: one per state directory, without Django, and recovering after a kill."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from executors_app.agentctl import state_files
from executors_app.machine.git.seeds import Seed, write_seed
from tests.agentctl.fakes import DELIVERED
from tests.agentctl.processes import ROOT, Place
from tests.executors.repositories import make_repository
from tests.waiting import PATIENCE, eventually, eventually_async


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


START: dict[str, Any] = {"launch_id": "launch-1", "argv": ["x"], "driver": "obedient"}


async def test_agentctl_is_ready_within_a_second_and_writes_its_address(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl() as process:
        took = cpu_seconds(process.pid)
        status = await place.client().status()

        ready = place.ready()
        assert ready.keys() == {"url", "pid", "boot_id", "started_at"}
        assert (ready["pid"], ready["boot_id"]) == (process.pid, status["boot_id"])
        assert took < 1, "CPU time is measured, so other load does not count"
        mode = {path.name: path.stat().st_mode & 0o777 for path in place.state_dir.rglob("*") if path.is_file()}
        assert set(mode.values()) == {0o600}, mode


def test_lock_that_a_killed_process_has_not_let_go_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as killed:
        pass
    with (tmp_path / "lock").open("wb", buffering=0) as held:  # by a thread of it that still waits for the disk
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(orjson.dumps({"url": "http://127.0.0.1:9", "pid": killed.pid}))
        monkeypatch.setattr(time, "sleep", lambda _: held.close())

        state_files.InstanceLock(tmp_path).release()

        assert held.closed, "it has waited"


def test_lock_of_a_living_process_is_reported_at_once(tmp_path: Path) -> None:
    lock = state_files.InstanceLock(tmp_path)
    lock.publish_ready_info({"pid": os.getpid()}, None)

    with pytest.raises(state_files.AlreadyRunning) as refused:
        state_files.InstanceLock(tmp_path, patience=600)
    lock.release()

    assert refused.value.ready == {"pid": os.getpid()}


async def test_second_agentctl_reports_the_first_and_exits(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl() as first:
        ready = place.ready_file.read_text()
        place.ready_file.unlink()

        second = await asyncio.to_thread(_run, place.argv())

        assert (second.returncode, second.stdout.strip()) == (3, ready)
        assert place.ready_file.read_text() == ready
        assert first.poll() is None
        await place.client().status()


async def test_sigterm_shuts_down_cleanly_even_if_it_was_blocked(tmp_path: Path) -> None:
    place = Place(tmp_path)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with place.agentctl() as process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            await place.client().start_agent(START, 10)
            async with place.client().events(0, "") as stream:
                process.send_signal(signal.SIGTERM)
                seen = [line["kind"] async for batch in stream for line in batch]
            assert eventually(lambda: process.poll() is not None)
            assert process.returncode == 0
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    assert seen[-1] == "agent.exited"
    assert place.lines()[-1]["expected"] is True


async def test_shutdown_answers_before_exiting(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl() as process:
        await place.client().start_agent(START, 10)
        answer = await place.client().shutdown(stop_agent=True, intent_id="intent-1")
        eventually(lambda: process.poll() is not None)

    assert answer["stopped"] is True
    assert process.returncode == 0
    assert answer["journal"]["last_seq"] == place.lines()[-1]["seq"]


async def test_kill_in_a_turn_keeps_the_journal_and_duplicates_no_prompt(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl() as process:
        await place.client(generation=5).start_agent(START, 10)
        await place.client(generation=5).prompt("m1", "hang")
        await eventually_async(lambda: "prompt.delivered" in place.kinds())
        process.kill()
    before = place.lines()

    with place.agentctl():
        client = place.client(generation=5)
        status = await client.status()
        assert (status["agent"]["state"], status["generation"]) == ("none", 5)
        assert status["journal"]["epoch"] == before[0]["epoch"]
        assert (await client.agent_session())["resume_token"] == "conversation-1"
        await client.start_agent({**START, "launch_id": "launch-2"}, 10)
        assert await client.prompt("m1", "hang") == {"accepted": True, "duplicate": True}

    after = place.lines()
    assert after[: len(before)] == before
    assert [line["seq"] for line in after] == list(range(1, len(after) + 1))
    assert not any(line["kind"].startswith("turn.") for line in after)
    assert (place.workspace / DELIVERED).read_text().split() == ["m1"]


async def test_prompt_accepted_before_a_crash_is_never_delivered(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    crash = {"KANDEV_CRASH_AT": "agentctl.prompt_accepted", "KANDEV_CRASH_DIR": str(tmp_path)}
    with place.agentctl(env=crash) as process:
        await place.client().start_agent(START, 10)
        with pytest.raises(Exception, match="agentctl"):
            await place.client().prompt("m1", "hello")
        eventually(lambda: process.poll() is not None)
    assert place.kinds()[-1] == "prompt.accepted"

    with place.agentctl():
        await place.client().start_agent({**START, "launch_id": "launch-2"}, 10)
        assert (await place.client().prompt("m1", "hello"))["duplicate"] is True
    assert not (place.workspace / DELIVERED).exists()


@pytest.mark.parametrize(
    "wrong",
    [
        "--listen=localhost",
        "--listen=127.0.0.1:99999",
        "--label=x",
        "--token-file=/none/such",
        "--state-dir=/proc/none",
    ],
)
def test_failed_start_reports_one_line(tmp_path: Path, wrong: str) -> None:
    done = _run([*Place(tmp_path).argv(), wrong])

    assert done.returncode == 2
    assert done.stderr.startswith("agentctl: ")
    assert done.stderr.count("\n") == 1


def test_token_is_read_after_the_workspace_was_made(tmp_path: Path) -> None:
    worktree = tmp_path / "worktrees" / "session-1"
    repository = make_repository(tmp_path / "repository")
    write_seed(Seed("kandev/0123456789ab", repository=str(repository), base="main"), tmp_path / "seed")
    argv = [*Place(tmp_path).argv(), "--token-file=/none/such"]

    done = _run([*argv, f"--seed={tmp_path / 'seed'}", f"--workspace={worktree}"])

    assert (done.returncode, "/none/such" in done.stderr) == (2, True)
    assert (worktree / "README").exists(), "a program that git ran meanwhile could find no token in agentctl's memory"


def test_guessable_token_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    argv = place.argv()
    (tmp_path / "token").write_text("short\n")

    done = _run(argv)

    assert (done.returncode, "token" in done.stderr) == (2, True)
    assert not os.path.lexists(place.ready_file)
