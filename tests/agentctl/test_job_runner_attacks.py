"""Hostile job requests and scripts get a clear answer, and nothing escapes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.jobs import runner
from executors_app.agentctl.jobs.requests import MAX_SCRIPT_BYTES
from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.protocol import GENERATION_HEADER
from tests.agentctl.running import Running
from tests.agentctl.scripts import DEADLINE, begin, end, is_gone, pid_in, process_in, run
from tests.waiting import eventually_async


@dataclass(frozen=True)
class Attack:
    """A request that is refused, with the expected code."""

    name: str
    body: dict[str, Any] = field(default_factory=dict)
    code: str = "validation_error"


ATTACKS = [
    Attack("cwd above", {"cwd": ".."}),
    Attack("cwd above in the middle", {"cwd": "folder/../../outside"}),
    Attack("an absolute cwd", {"cwd": "/tmp"}),
    Attack("cwd through a link out of the workspace", {"cwd": "to-outside"}),
    Attack("cwd through two links", {"cwd": "folder/back/to-outside"}),
    Attack("cwd in a loop of links", {"cwd": "loop"}),
    Attack("a cwd that is not there", {"cwd": "none"}),
    Attack("a cwd that is a file", {"cwd": "file"}),
    Attack("a cwd that is a pipe", {"cwd": "pipe"}),
    Attack("a cwd with U+0000", {"cwd": "folder\0"}),
    Attack("a long cwd", {"cwd": "x" * 300}),
    Attack("a cwd that is no text", {"cwd": 7}),
    Attack("no script", {"script": None}),
    Attack("a script that is no text", {"script": ["rm"]}),
    Attack("a script with U+0000", {"script": "true\0false"}),
    Attack("a script longer than a system takes", {"script": "#" * (MAX_SCRIPT_BYTES + 1)}),
    Attack("no id", {"job_id": None}),
    Attack("an empty id", {"job_id": ""}),
    Attack("an id that leads up", {"job_id": ".."}),
    Attack("an id with a line end", {"job_id": "a\nb"}),
    Attack("a long id", {"job_id": "x" * 201}),
    Attack("an environment that is a list", {"environment": ["A=1"]}),
    Attack("a variable that is no text", {"environment": {"A": 1}}),
    Attack("a variable with U+0000", {"environment": {"A": "\0"}}),
    Attack("a variable without a name", {"environment": {"": "1"}}),
    Attack("a variable that is two", {"environment": {"A=1\nB": "2"}}),
    Attack("no time", {"timeout": -1}),
    Attack("a time without end", {"timeout": 1e12}),
    Attack("a time that is no number", {"timeout": "600"}),
    Attack("a grace without end", {"grace": 3600}),
]


@pytest.fixture
def outside(running: Running) -> Path:
    """Return a directory beside the workspace, with links from the workspace to it."""
    found = running.workspace.parent / "outside"
    for directory in (found, running.workspace / "folder"):
        directory.mkdir()
    links = {"to-outside": found, "loop": running.workspace / "loop", "folder/back": running.workspace}
    for name, target in links.items():
        (running.workspace / name).symlink_to(target)
    (running.workspace / "file").touch()
    os.mkfifo(running.workspace / "pipe")
    return found


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_attack_gets_a_clear_error_and_runs_nothing(running: Running, outside: Path, attack: Attack) -> None:
    body = {"job_id": "job-1", "script": f"touch {outside}/ran ran", **attack.body}

    status, answer = await running.post("/jobs", **body)

    assert (status, answer["code"]) == (400, attack.code), answer
    assert answer["message"]
    assert (await running.get("/jobs/job-1"))["code"] == "job_unknown"
    assert not list(outside.iterdir())
    assert not (running.workspace / "ran").exists()


@pytest.mark.parametrize("raw", [b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"job_id": "a", "script": "\\ud800"}'])
async def test_body_that_is_not_an_object_is_refused(running: Running, raw: bytes) -> None:
    headers = {**running.headers, GENERATION_HEADER: "1"}
    async with running.http.post(running.url + "/jobs", data=raw, headers=headers) as response:
        assert (response.status, (await response.json())["code"]) == (400, "validation_error")


@pytest.mark.parametrize("query", [{"wait": "-1"}, {"wait": "x"}, {"wait": "nan"}, {"wait": "26"}, {"tail": "-1"}])
async def test_invalid_query_is_refused(running: Running, query: dict[str, str]) -> None:
    await run(running, "true")
    assert (await running.get("/jobs/job-1", **query))["code"] == "validation_error"


@pytest.mark.parametrize("job_id", ["../../etc/passwd", "run-1/loop[3]/coder#2", "%2e%2e", "a?b&c", "...", "~", "-rf"])
async def test_any_job_id_works_and_never_becomes_a_path(running: Running, job_id: str) -> None:
    from yarl import URL  # noqa: PLC0415

    await begin(running, "echo mine", job_id)
    quoted = "".join(f"%{byte:02X}" for byte in job_id.encode())
    url = URL(f"{running.url}/jobs/{quoted}?wait=20", encoded=True)
    async with running.http.get(url, headers=running.headers) as response:
        answer = await response.json()

    assert (answer["job_id"], answer["state"], answer["stdout"]) == (job_id, "ended", "mine\n")
    (directory,) = (running.state_dir / "jobs").iterdir()
    assert directory.name.isalnum()


async def test_missing_workspace_is_reported(running: Running) -> None:
    running.workspace.rmdir()
    try:
        status, answer = await running.post("/jobs", job_id="job-1", script="true")
        assert (status, answer["code"]) == (409, "worktree_missing")
    finally:
        running.workspace.mkdir()


async def test_script_that_cannot_be_started_reports_spawn_failed(running: Running) -> None:
    ended = await run(running, "true", environment={"LARGE": "x" * 200_000})

    assert (ended["state"], ended["error"], ended["exit_code"]) == ("ended", "spawn_failed", None)
    assert ended["stderr"] == "/bin/sh: Argument list too long\n"


async def test_script_that_closes_its_output_is_followed_to_its_end(running: Running) -> None:
    ended = await run(running, "echo before; exec >&- 2>&- <&-; sleep 0.2; exit 6")
    assert (ended["exit_code"], ended["stdout"]) == (6, "before\n")


async def test_script_flooding_one_endless_line_can_be_cancelled(running: Running) -> None:
    await begin(running, "tr '\\0' x </dev/zero")

    async def is_full() -> bool:
        return bool((await running.get("/jobs/job-1"))["truncated"])

    await eventually_async(is_full, DEADLINE)
    _, answer = await running.post("/jobs/job-1/cancel")
    assert (answer["error"], len(answer["stdout"])) == ("cancelled", 1 << 20)


async def test_forked_processes_in_their_own_sessions_end_with_their_job(running: Running) -> None:
    storm = "i=0; while [ $i -lt 60 ]; do setsid sh -c 'echo $$ >>pids; exec sleep 3600' & i=$((i+1)); done\n"
    (running.workspace / "storm").write_text(storm)
    await begin(running, "sh storm; setsid sh -c '(setsid sh storm &)'\nsleep 3600")
    pids = running.workspace / "pids"
    await eventually_async(lambda: pids.exists() and pids.read_text().count("\n") >= 100, DEADLINE)

    _, answer = await running.post("/jobs/job-1/cancel")

    assert (answer["state"], answer["error"]) == ("ended", "cancelled")
    found = [identity.identify(int(pid)) for pid in pids.read_text().split()]
    assert not [one for one in found if one and one.start_time and _is_sleeper(one) and identity.is_alive(one)]


def _is_sleeper(one: ProcessIdentity) -> bool:
    """Return whether the pid still belongs to a process of the job, as it may have been reused."""
    return b"KANDEV_EXECUTION_ID=execution-1" in identity.read_environment(one.pid)


async def test_script_that_kills_its_guard_is_ended_and_reported_lost(running: Running) -> None:
    await begin(running, "setsid sleep 3600 & echo $! >pid; echo said; sleep 0.2; kill -9 $PPID; sleep 3600")
    left = await process_in(running.workspace / "pid")

    ended = await end(running)

    assert (ended["state"], ended["error"], ended["exit_code"]) == ("lost", "lost", None)
    assert ended["stdout"] == "said\n"
    await is_gone(left)
    assert await begin(
        running, "setsid sleep 3600 & echo $! >pid; echo said; sleep 0.2; kill -9 $PPID; sleep 3600"
    ) == (ended)


@pytest.mark.parametrize(("order", "why"), [("cancel", "cancelled"), ("timeout", "timeout")])
async def test_script_that_stops_its_guard_is_ended_anyway(
    running: Running, monkeypatch: pytest.MonkeyPatch, order: str, why: str
) -> None:
    monkeypatch.setattr(runner, "_GUARD_TIMEOUT", 0.5)
    monkeypatch.setattr(runner, "CANCEL_GRACE", 0.5)
    times: dict[str, Any] = {"timeout": 10, "grace": 0} if order == "timeout" else {}
    await begin(running, "kill -STOP $PPID; echo $$ >pid; exec sleep 3600", **times)
    script = identity.identify(await pid_in(running.workspace / "pid"))
    if order == "cancel":
        await running.post("/jobs/job-1/cancel")

    ended = await end(running)

    assert (ended["state"], ended["error"], ended["exit_code"]) == ("ended", why, None)
    assert script is None or await eventually_async(lambda: not identity.is_alive(script), DEADLINE)


async def test_script_has_no_descriptor_of_its_stored_output(running: Running) -> None:
    ended = await run(
        running, "ls -l /proc/self/fd | sed 's/.*-> //' | grep -v -e '^/proc' -e '^pipe:' -e '^/dev/null'"
    )
    assert [line for line in ended["stdout"].splitlines() if not line.startswith("total")] == []


async def test_full_disk_refuses_jobs_with_a_reason(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        status, answer = await running.post("/jobs", job_id="job-1", script="echo ran >>ran")
    assert (status, answer["code"]) == (503, "journal_full")
    assert not (running.workspace / "ran").exists()
    assert list((running.state_dir / "jobs").iterdir()) == []

    assert (await run(running, "echo ran >>ran"))["exit_code"] == 0, "a job runs once there is room"


async def test_exit_code_is_kept_when_the_output_does_not_fit(running: Running) -> None:
    """A file size limit of the guard stands in for a full disk: writes fail in the same way."""
    limit = "prlimit --pid $PPID --fsize=8192"
    ended = await run(running, f"{limit} && echo first && yes | head -c 100000; exit 9")

    assert (ended["state"], ended["exit_code"], ended["error"]) == ("ended", 9, "")
    assert ended["truncated"] is True
    assert ended["stdout"].startswith("first\n")
    assert len(ended["stdout"]) < 8192


async def test_signal_to_the_guard_ends_the_job_cleanly(running: Running) -> None:
    await begin(running, "echo $PPID >pid; sleep 3600")
    os.kill(await pid_in(running.workspace / "pid"), signal.SIGTERM)
    ended = await end(running)
    assert (ended["state"], ended["exit_code"]) == ("ended", -15)
