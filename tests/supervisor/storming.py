"""``python -m tests.supervisor.storming URL``: ``supervise`` with the fake agentctls at that address."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Supervise until asked to end."""
    django.setup()
    from executors_app import plugins  # noqa: PLC0415  (models want the settings above)
    from sessions_app.supervisor.loop import SupervisorLoop  # noqa: PLC0415
    from tests.supervisor.stand_ins import StandIns  # noqa: PLC0415

    made = StandIns(sys.argv[1])
    known = {**plugins.runtimes(), made.name: made}
    plugins.runtimes = lambda: known

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await SupervisorLoop().run(stop)

    asyncio.run(run())


@contextmanager
def supervising(url: str, log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the process, which is killed at the end of the block."""
    argv = [sys.executable, "-m", "tests.supervisor.storming", url]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(argv, cwd=ROOT, env=dict(env), stderr=stderr) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    main()
