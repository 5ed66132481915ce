"""Jobs: a script runs once in the workspace, and its result is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.jobs import records, runner
from executors_app.agentctl.process.job_process import KEPT_BYTES
from executors_app.wire.protocol import JobError
from tests.agentctl.running import Running, agentctl
from tests.agentctl.scripts import DEADLINE, begin, end, is_gone, process_in, run
from tests.waiting import eventually_async

FORKS = {
    "in the background": "sh -c 'echo $$ >pid; exec sleep 3600' &",
    "in a session of its own": "setsid sh -c 'echo $$ >pid; exec sleep 3600' &",
    "orphaned twice": r"""(setsid sh -c "sh -c 'echo \$\$ >pid; exec sleep 3600' &" &)""",
    "without its environment": "setsid env -i sh -c 'echo $$ >pid; exec sleep 3600' &",
    "ignoring TERM": "setsid sh -c 'trap \"\" TERM; echo $$ >pid; while :; do sleep 1; done' &",
}
"""Child processes of a script that write their id into ``pid`` and would run for an hour."""


async def test_finished_job_reports_its_exit_code_and_output(running: Running) -> None:
    job = await begin(running, "echo said; echo complained >&2; exit 3")
    assert (job["state"], job["exit_code"], job["ended_at"]) == ("running", None, None)

    ended = await end(running)

    assert ended == {
        "job_id": "job-1",
        "state": "ended",
        "exit_code": 3,
        "error": "",
        "truncated": False,
        "stdout": "said\n",
        "stderr": "complained\n",
        "started_at": job["started_at"],
        "ended_at": ended["ended_at"],
    }
    assert ended["started_at"] < ended["ended_at"]


async def test_request_for_a_job_can_wait_for_its_end(running: Running) -> None:
    status, ended = await running.post("/jobs?wait=20&tail=3", job_id="job-1", script="echo said")

    assert (status, ended["state"], ended["exit_code"], ended["stdout"]) == (200, "ended", 0, "id\n")
    assert ended == await running.get("/jobs/job-1", tail="3")
    status, answer = await running.post("/jobs?wait=x", job_id="job-2", script="touch ran")
    assert (status, answer["code"]) == (400, "validation_error")
    assert not (running.workspace / "ran").exists()


async def test_job_runs_in_the_workspace_with_a_filtered_environment(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "secret")
    (running.workspace / "part").mkdir()
    given = {"INPUT_X": "a'b\"c $(rm -rf x) `x` \n end", "KANDEV_EXECUTION_ID": "another's"}
    script = 'pwd; printf "%s" "$INPUT_X"; echo; echo "$KANDEV_EXECUTION_ID" "${DATABASE_URL-none}"; cat'

    ended = await run(running, script, environment=given, cwd="part")

    place = (running.workspace / "part").resolve()
    assert ended["stdout"] == f"{place}\n{given['INPUT_X']}\nexecution-1 none\n"
    assert ended["exit_code"] == 0, "the script reads the end of its input"


async def test_job_id_runs_once_and_refuses_a_different_request(running: Running) -> None:
    first = await run(running, "echo once >>times")

    assert await begin(running, "echo once >>times") == first
    status, answer = await running.post("/jobs", job_id="job-1", script="echo twice >>times")

    assert (status, answer["code"]) == (409, "conflict")
    assert (running.workspace / "times").read_text() == "once\n"


async def test_output_is_available_while_a_job_runs(running: Running) -> None:
    await begin(running, "echo one; echo two; echo oops >&2; sleep 3600")

    async def read_output() -> Any:
        answer = await running.get("/jobs/job-1")
        return answer if answer["stdout"] == "one\ntwo\n" and answer["stderr"] else None

    answer = await eventually_async(read_output, DEADLINE)
    assert (answer["state"], answer["truncated"]) == ("running", False)
    tail = await running.get("/jobs/job-1", tail="4")
    assert (tail["stdout"], tail["truncated"]) == ("two\n", True)
    assert (await running.get("/status"))["jobs"] == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_last_mebibyte_of_a_huge_output_is_kept(running: Running, stream: str) -> None:
    to = ">&2" if stream == "stderr" else ""
    ended = await run(running, f"(seq 1 400000; echo the last) {to}", timeout=300)

    assert ended["exit_code"] == 0
    assert ended["truncated"] is True
    assert len(ended[stream]) == KEPT_BYTES
    assert ended[stream].endswith("\n399999\n400000\nthe last\n")
    assert sum(path.stat().st_size for path in (running.state_dir / "jobs").rglob("*")) < 2 * KEPT_BYTES


async def test_output_is_valid_text_for_every_database(running: Running) -> None:
    ended = await run(running, r"printf 'a\0b\377c\303\274'")
    assert ended["stdout"] == "a\ufffdb\ufffdcü"

    await run(running, r"printf '\303\274end'", "job-2")
    cut = await running.get("/jobs/job-2", tail="4")
    assert cut["stdout"] == "end", "the cut leaves no partial character"


@pytest.mark.parametrize("forked", FORKS.values(), ids=FORKS)
async def test_processes_left_by_a_script_end_with_it(running: Running, forked: str) -> None:
    await begin(running, f"{forked}\nuntil [ -e go ]; do sleep 0.05; done; exit 4")
    left = await process_in(running.workspace / "pid")

    (running.workspace / "go").touch()

    assert (await end(running))["exit_code"] == 4
    await is_gone(left)


@pytest.mark.parametrize("forked", FORKS.values(), ids=FORKS)
async def test_cancel_ends_the_whole_process_tree(running: Running, forked: str) -> None:
    await begin(running, f"{forked}\nsleep 3600")
    left = await process_in(running.workspace / "pid")

    status, answer = await running.post("/jobs/job-1/cancel")

    assert (status, answer["state"], answer["error"]) == (200, "ended", "cancelled")
    assert answer["exit_code"] in (-15, -9)
    await is_gone(left)
    assert (await running.post("/jobs/job-1/cancel"))[1] == answer, "a second cancel changes nothing"


@pytest.mark.parametrize("forked", FORKS.values(), ids=FORKS)
async def test_timeout_ends_the_whole_process_tree(running: Running, forked: str) -> None:
    script = f"{forked}\nuntil [ -s pid ]; do sleep 0.05; done; echo said; sleep 3600"
    await begin(running, script, timeout=10, grace=0.2)
    left = await process_in(running.workspace / "pid")

    ended = await end(running)

    assert (ended["state"], ended["error"], ended["stdout"]) == ("ended", "timeout", "said\n")
    await is_gone(left)


async def test_immediate_cancel_counts_as_cancelled(running: Running) -> None:
    await begin(running, "sleep 3600")
    _, answer = await running.post("/jobs/job-1/cancel")
    assert (answer["state"], answer["error"]) == ("ended", "cancelled")
    assert answer["exit_code"] in (None, -15, -9), "no exit code if the job never began"


async def test_cancelled_script_can_clean_up(running: Running) -> None:
    await begin(running, "trap 'echo goodbye; exit 5' TERM; echo ready; while :; do sleep 0.1; done")
    await eventually_async(lambda: _has_printed(running, "ready\n"), DEADLINE)

    _, answer = await running.post("/jobs/job-1/cancel")

    assert (answer["exit_code"], answer["error"], answer["stdout"]) == (5, "cancelled", "ready\ngoodbye\n")


async def _has_printed(running: Running, words: str) -> bool:
    return bool((await running.get("/jobs/job-1"))["stdout"] == words)


async def test_stopping_agentctl_ends_its_jobs_and_records_why(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        await begin(running, f"{FORKS['orphaned twice']}\necho said; sleep 3600")
        left = await process_in(running.workspace / "pid")
    await is_gone(left)

    async with agentctl(tmp_path) as again:
        ended = await end(again)
        assert (ended["state"], ended["error"], ended["stdout"]) == ("ended", "agentctl_ended", "said\n")
        assert await begin(again, f"{FORKS['orphaned twice']}\necho said; sleep 3600") == ended


async def test_stopping_agentctl_starts_no_more_jobs(running: Running) -> None:
    await running.sidecar.stop_for_good()
    status, answer = await running.post("/jobs", job_id="job-1", script="touch ran")
    assert (status, answer["code"]) == (409, "not_running")
    assert not (running.workspace / "ran").exists()


async def test_results_survive_a_restart_and_old_ones_lose_their_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_KEPT", 2)
    async with agentctl(tmp_path) as running:
        before = [await run(running, f"echo {number}; exit {number}", f"job-{number}") for number in range(4)]
    async with agentctl(tmp_path) as again:
        after = [await end(again, f"job-{number}") for number in range(4)]
        assert await begin(again, "echo 0; exit 0", "job-0") == after[0], "the job does not run again"
        status, answer = await again.post("/jobs", job_id="job-0", script="another")
        assert (status, answer["code"]) == (409, "conflict")

    assert after[2:] == before[2:]
    assert after[:2] == [{**each, "stdout": "", "truncated": True} for each in before[:2]]
    assert len(list((tmp_path / "state" / "jobs").iterdir())) == 2


async def test_files_of_the_next_job_are_prepared_after_a_job(running: Running) -> None:
    spare = running.state_dir / "jobs" / "spare"
    await run(running, "true")
    await eventually_async(spare.exists)
    prepared = spare.stat().st_ino

    await run(running, "true", "job-2")

    assert prepared in {path.stat().st_ino for path in spare.parent.iterdir() if path != spare}


async def test_number_of_running_jobs_is_limited(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_RUNNING", 1)
    await begin(running, "sleep 3600")
    status, answer = await running.post("/jobs", job_id="job-2", script="true")
    assert (status, answer["code"]) == (409, "busy")
    await running.post("/jobs/job-1/cancel")
    assert (await run(running, "true", "job-2"))["exit_code"] == 0


async def test_script_and_environment_of_a_job_are_never_stored(running: Running) -> None:
    await run(running, "echo $SECRET_NAME | wc -c; true a-script-with-words", environment={"SECRET_NAME": "the-secret"})
    kept = b"".join(path.read_bytes() for path in running.state_dir.rglob("*") if path.is_file())
    assert b"job-1" in kept
    assert b"the-secret" not in kept
    assert b"a-script-with-words" not in kept


async def test_job_error_codes_match_in_guard_and_agentctl() -> None:
    from executors_app.agentctl.process import job_process  # noqa: PLC0415

    assert {job_process.TIMED_OUT, job_process.ORPHANED, job_process.NOT_STARTED} == {
        JobError.TIMEOUT,
        JobError.AGENTCTL_ENDED,
        JobError.SPAWN_FAILED,
    }
