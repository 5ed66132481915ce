"""Scripts for the workspace of an agentctl in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from executors_app.machine.process import identity
from executors_app.machine.process.identity import ProcessIdentity
from tests.agentctl.running import Running
from tests.waiting import eventually_async

DEADLINE = 60


async def begin(running: Running, script: str, job_id: str = "job-1", **more: Any) -> dict[str, Any]:
    """Request a job."""
    status, answer = await running.post("/jobs", job_id=job_id, script=script, **more)
    assert status == 200, answer
    return dict(answer)


async def end(running: Running, job_id: str = "job-1") -> dict[str, Any]:
    """Return the job once it has ended."""

    async def ended() -> dict[str, Any]:
        answer = await running.get(f"/jobs/{job_id}", wait="20")
        return answer if answer["state"] != "running" else {}

    return dict(await eventually_async(ended, DEADLINE, describe="the job has ended"))


async def run(running: Running, script: str, job_id: str = "job-1", **more: Any) -> dict[str, Any]:
    """Run a job from start to end."""
    await begin(running, script, job_id, **more)
    return await end(running, job_id)


async def pid_in(path: Path) -> int:
    """Return the process id that a script writes into a file."""

    def written() -> str:
        return path.read_text() if path.exists() and path.read_text().endswith("\n") else ""

    return int(await eventually_async(written, DEADLINE, describe=f"{path.name} contains a process id"))


async def process_in(path: Path) -> ProcessIdentity:
    """Return the live process whose id a script writes into a file."""
    found = identity.identify(await pid_in(path))
    assert found is not None
    return found


async def is_gone(process: ProcessIdentity) -> None:
    """Wait until the process has ended."""
    assert await eventually_async(lambda: not identity.is_alive(process), DEADLINE, describe=f"{process} has ended")
