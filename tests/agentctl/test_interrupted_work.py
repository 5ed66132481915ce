"""The report about interrupted work: changed files, and processes that ended with the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.errors import AgentctlRefused
from tests.agentctl.processes import REAL, ROOT, Place
from tests.waiting import eventually, eventually_async


def _git(place: Place, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=place.workspace, check=True, capture_output=True)


def _repository(place: Place) -> None:
    place.workspace.mkdir()
    _git(place, "init", "-q")
    for name in ("kept.py", "changed.py", "removed.py"):
        (place.workspace / name).write_text("first\n")
    _git(place, "add", ".")
    _git(place, "commit", "-qm", "first")


def _start(place: Place) -> dict[str, Any]:
    home = str(place.base / "conversations")
    argv = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "forks", "--home", home]
    env = {"PYTHONPATH": str(ROOT)}
    return {"launch_id": "launch-1", "argv": argv, "env": env, "cwd": str(place.workspace), "driver": "acp"}


def _kept(place: Place) -> list[str]:
    return [line["commit"] for line in place.lines() if line["kind"] == "workspace.snapshot"]


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}/cwd").exists()


@pytest.mark.parametrize("killed", ["agent", "agentctl"])
async def test_changed_files_and_ended_processes_are_reported_whichever_process_was_killed(
    tmp_path: Path, killed: str
) -> None:
    place = Place(tmp_path)
    _repository(place)
    with place.agentctl(REAL) as process:
        client = place.client()
        await client.start_agent(_start(place), 30)
        await client.prompt("m1", "work 300")
        await eventually_async(lambda: "prompt.delivered" in place.kinds())
        since = _kept(place)[0]
        (place.workspace / "changed.py").write_text("second\n")
        (place.workspace / "added ü.py").write_text("new\n")
        (place.workspace / "removed.py").unlink()
        agent = (await client.status())["agent"]["pid"]
        if killed == "agentctl":
            process.send_signal(signal.SIGKILL)
            process.wait()
        else:
            os.kill(agent, signal.SIGKILL)
            await eventually_async(lambda: "agent.exited" in place.kinds())
            await _check(place, since)
    eventually(lambda: _is_gone(agent), describe="the agent has ended")
    if killed == "agentctl":
        with place.agentctl(REAL):
            await _check(place, since)


async def _check(place: Place, since: str) -> None:
    client = place.client()
    changes = await client.git("changes", {"since": since})
    assert sorted(changes["files"]) == ["added added ü.py", "deleted removed.py", "modified changed.py"]
    assert set(await client.ended_with_agent()) == {"sleep 3600"}
    for unknown in ("f" * 40, "--all", ""):
        with pytest.raises(AgentctlRefused):
            await client.git("changes", {"since": unknown})


async def test_new_agent_starts_with_an_empty_report(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.agentctl(REAL):
        client = place.client()
        assert await client.ended_with_agent() == []
        await client.start_agent(_start(place), 30)
        await client.stop_agent(0, "intent-1")
        assert await client.ended_with_agent() != []
        honest = [word if word != "forks" else "honest" for word in _start(place)["argv"]]
        await client.start_agent({**_start(place), "argv": honest, "launch_id": "launch-2"}, 30)
        await client.stop_agent(0, "intent-2")
        assert await client.ended_with_agent() == []
