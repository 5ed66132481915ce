"""``python -m tests.supervisor.supervisor_process URL``: run ``supervise`` with the fake agentctls at that URL."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import django

from executors_app.runtimes import Runtime
from tests.preloaded import PreloadedProcess
from tests.supervisor.fake_agentctl_server import FakeAgentctlRuntime

ROOT = Path(__file__).resolve().parents[2]


def register_runtime(runtime: Runtime) -> None:
    """Add a runtime to those installed in this process."""
    from executors_app import plugins  # noqa: PLC0415  (models want settings)

    known = {**plugins.runtimes(), runtime.name: runtime}
    plugins.runtimes = lambda: known


def run_supervisor() -> None:
    """Supervise until SIGTERM."""
    from sessions_app.supervisor.loop import SupervisorLoop  # noqa: PLC0415  (models want settings)

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await SupervisorLoop().run(stop)

    asyncio.run(run())


@contextmanager
def supervising(url: str, log: Path, env: Mapping[str, str]) -> Iterator[PreloadedProcess]:
    """Run the process during the block and kill it at the end."""
    argv = ["-m", "tests.supervisor.supervisor_process", url]
    with (
        log.open("wb") as stderr,
        PreloadedProcess(argv, env=env, stderr=stderr) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    django.setup()
    register_runtime(FakeAgentctlRuntime(sys.argv[1]))
    run_supervisor()
