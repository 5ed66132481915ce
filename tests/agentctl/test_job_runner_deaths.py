"""Whichever process of a job is killed, the job is not repeated and its end is reported truthfully."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from executors_app.wire.errors import AgentctlRefused, AgentctlUnreachable, StaleGeneration
from tests.agentctl.processes import Place, Start, executed, forked, kill
from tests.agentctl.scripts import DEADLINE, is_gone, pid_in, process_in
from tests.executors.harness import ended_job
from tests.waiting import eventually

TREE = "echo ran >>times; setsid sh -c 'echo $$ >left; exec sleep 3600' & echo $$ >pid; echo $PPID >guard; echo said\n"
LONG = {"script": f"{TREE}sleep 3600"}


async def _processes(place: Place) -> list[ProcessIdentity]:
    return [await process_in(place.workspace / name) for name in ("left", "pid", "guard")]


def _times(place: Place) -> int:
    """Return how many times the script has started."""
    found = place.workspace / "times"
    return found.read_text().count("ran\n") if found.exists() else 0


@pytest.fixture(params=[executed, forked], ids=["executed", "forked"])
def start(request: pytest.FixtureRequest) -> Start:
    """Return how to start agentctl; a forked one also forks the guards of its jobs."""
    found: Start = request.param
    return found


async def test_killed_agentctl_ends_its_job_and_the_next_reports_it(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place) as process:
        await place.client().start_job("job-1", LONG)
        tree = await _processes(place)
        kill(process)
        for each in tree:
            await is_gone(each)

    with start(place):
        ended = await ended_job(place.client(), "job-1")
        assert (ended["state"], ended["error"], ended["exit_code"]) == ("ended", "agentctl_ended", -9)
        assert ended["stdout"] == "said\n"
        assert await place.client().start_job("job-1", LONG) == ended
        with pytest.raises(AgentctlRefused) as refused:
            await place.client().start_job("job-1", {"script": "another"})
        assert refused.value.refusal == "conflict"
    assert _times(place) == 1


async def test_exit_code_survives_a_frozen_and_killed_agentctl(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place) as process:
        await place.client().start_job("job-1", {"script": f"{TREE}until [ -e go ]; do sleep 0.05; done; exit 7"})
        tree = await _processes(place)
        process.send_signal(signal.SIGSTOP)
        (place.workspace / "go").touch()
        assert eventually(lambda: not identity.is_alive(tree[1]), DEADLINE)
        eventually(lambda: _end_is_written(place), DEADLINE)
        kill(process)

    with start(place):
        ended = await ended_job(place.client(), "job-1")
        assert (ended["state"], ended["error"], ended["exit_code"], ended["stdout"]) == ("ended", "", 7, "said\n")
    assert _times(place) == 1


def _end_is_written(place: Place) -> bool:
    (end,) = (place.state_dir / "jobs").glob("*/end")
    return b"\nended " in end.read_bytes()


async def test_job_is_lost_when_guard_and_agentctl_die_together(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place) as process:
        await place.client().start_job("job-1", LONG)
        tree = await _processes(place)
        process.send_signal(signal.SIGSTOP)
        os.kill(tree[2].pid, signal.SIGKILL)
        kill(process)

    with start(place):
        ended = await ended_job(place.client(), "job-1")
        assert (ended["state"], ended["error"], ended["exit_code"]) == ("lost", "lost", None)
        assert ended["stdout"] == "said\n"
        assert await place.client().start_job("job-1", LONG) == ended
        for each in tree:
            await is_gone(each)
    assert _times(place) == 1


async def test_hanging_guard_does_not_block_the_next_agentctl(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place) as process:
        await place.client().start_job("job-1", LONG)
        tree = await _processes(place)
        os.kill(tree[2].pid, signal.SIGSTOP)
        kill(process)

    with start(place):
        assert (await ended_job(place.client(), "job-1"))["state"] == "lost"
        for each in tree:
            await is_gone(each)


KILLS = {
    "agentctl.job_prepared": (None, None),
    "agentctl.job_remembered": ("ended", "agentctl_ended"),
    "agentctl.job_spawned": ("ended", "agentctl_ended"),
    "agentctl.job_ended": ("ended", ""),
}
"""What the next agentctl reports about a job whose agentctl was killed at this point; None: it does not know the
job.
"""


@pytest.mark.parametrize("point", KILLS)
async def test_kill_at_any_point_runs_a_job_at_most_once(tmp_path: Path, start: Start, point: str) -> None:
    place = Place(tmp_path)
    state, error = KILLS[point]
    script = {"script": "echo ran >>times; echo said" if point == "agentctl.job_ended" else f"{TREE}sleep 3600"}
    crash = {"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(tmp_path)}
    with start(place, crash) as process:
        try:
            await place.client().start_job("job-1", script)
        except AgentctlUnreachable:
            assert point != "agentctl.job_ended"
        assert eventually(lambda: process.poll() is not None, DEADLINE)

    with start(place):
        client, before = place.client(), _times(place)
        if state is None:
            with pytest.raises(AgentctlRefused) as refused:
                await client.job("job-1")
            assert (refused.value.refusal, before) == ("job_unknown", 0)
            assert list((place.state_dir / "jobs").iterdir()) == []
            return
        ended = await client.start_job("job-1", script)
        assert (ended["state"], ended["error"]) == (state, error)
        if point == "agentctl.job_remembered":
            assert (ended["exit_code"], before) == (None, 0), "the job never began, and its result says so"
        if point == "agentctl.job_ended":
            assert (ended["exit_code"], ended["stdout"]) == (0, "said\n")
    assert _times(place) == before <= 1
    left = place.workspace / "left"
    if left.exists():
        process_left = identity.identify(await pid_in(left))
        assert process_left is None or not identity.is_alive(process_left)


async def test_shutdown_ends_a_job_and_stores_its_result(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place) as process:
        await place.client().start_job("job-1", LONG)
        tree = await _processes(place)
        await place.client().shutdown(stop_agent=True, intent_id="intent-1")
        assert eventually(lambda: process.poll() is not None, DEADLINE)
        assert not [each for each in tree if identity.is_alive(each)]

    with start(place):
        ended = await ended_job(place.client(), "job-1")
        assert (ended["state"], ended["error"], ended["stdout"]) == ("ended", "agentctl_ended", "said\n")


async def test_older_generation_can_neither_start_nor_cancel_jobs(tmp_path: Path, start: Start) -> None:
    place = Place(tmp_path)
    with start(place):
        await place.client(generation=7).start_job("job-1", LONG)
        older = place.client(generation=6)
        with pytest.raises(StaleGeneration):
            await older.start_job("job-2", {"script": "touch ran"})
        with pytest.raises(StaleGeneration):
            await older.cancel_job("job-1")
        assert (await older.job("job-1"))["state"] == "running", "reading a job is allowed"
        ended = await place.client(generation=8).cancel_job("job-1")
        assert (ended["state"], ended["error"]) == ("ended", "cancelled")
    assert not (place.workspace / "ran").exists()
